"""The tutorial, the README and a session, typed as they stand."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shlex
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import click
import pytest
from playwright.sync_api import expect, sync_playwright
from sqlalchemy import Connection, Engine, text

from tasks_app import Breaker, NewTask, create_group, create_task, get_task, locks
from tasks_app.cli.group import group
from tasks_app.domain.tasks.run import Cause
from tasks_app.domain.tasks.states import Event
from tasks_app.pool.flow_control import circuit_breakers
from tasks_app.pool.runs.claim import Claims, claim
from tasks_app.pool.runs.settle import settle_one
from tests.cli.conftest import shell  # noqa: F401  a fixture
from tests.cli.shell import Shell
from tests.clock import until
from tests.dashboard.chromium import CHROMIUM, WIDE
from tests.docs.reading import DOCUMENTS, PROJECT, blocks, text_of
from tests.factory import claimer, ending

PAGE = PROJECT / "docs" / "tutorial.md"
WRITES = os.environ.get("TUTORIAL") == "write"
PART = re.compile(
    r"^```(?P<kind>python|console)\n(?P<body>.*?)^```$"
    r"|^<!-- tutorial: the browser -->\n(?P<clicks>.*?)\n$",
    re.M | re.S,
)
LOOKS = ("tasks-app list", "tasks-app show", "tasks-app explain", "tasks-app sch", "tail", "cat")
"""Commands that a reader repeats until they show what the page shows."""
PATIENCE_S = 90
MASKS = (
    (r"(?m)^\[\d\].*\n?", ""),  # what the shell says of its jobs
    (r"\b[\w.-]+:\d+:[0-9a-f]{12}\b", "OWNER"),
    (r"\d\d:\d\d:\d\d(,\d+)?Z?", "TIME"),
    (r"\d{4}-\d\d-\d\d", "DAY"),
    (r"\b(0\.0\.0\.0|127\.0\.0\.1|localhost):\d+", "ADDRESS"),
    (r"process \d+|(?<=TIME )\d+(?= INFO)", "PROCESS"),
    (r"PostgreSQL [\d.]+|Valkey [\d.]+", "VERSION"),
    (r"to \d{4}; \d+ partitions", "MIGRATED"),
    (r"\b(\d+ (s|min) ago|just now)", "AGO"),
    (r"(?m)^\d+\b|(?<=ids=\[)\d+|(?<=--before )\d+|(?<=is task )\d+", "ID"),  # by the clock
)
"""What is different every time, besides the spans that ``timeless`` takes out."""
OWNER = re.compile(r"^owner +[^:\s]+:(\d+):", re.M)
KILL = re.compile(r"^kill -9 (\d+)$")


def masked(answer: str) -> str:
    for pattern, mask in MASKS:
        answer = re.sub(pattern, mask, answer)
    return timeless(answer).strip()


def gist(answer: str) -> list[str]:
    """What a writer waits for."""
    words = (
        r"\b(?:PENDING|RUNNING|SUCCEEDED|FAILED|similar|ready|result|owner|stock.count|Dashboard)\b"
    )
    return re.findall(words, answer)


class Reader:
    """Does what the page says, in order, and notes what was answered."""

    def __init__(self, terminal: Terminal, folder: Path, port: int) -> None:
        self.terminal, self.folder, self.port = terminal, folder, port
        self.process = ""

    def follow(self, page: str) -> str:
        """Return the page with the answers of today."""
        return PART.sub(self._part, page)

    def _part(self, found: re.Match[str]) -> str:
        if found["clicks"]:
            self._click(re.findall(r"(?<!\*)\*([^*]+)\*(?!\*)", found["clicks"].replace("\n", " ")))
        elif found["kind"] == "python":
            self._write(*found["body"].split("\n", 1))
        else:
            return found[0].replace(found["body"], "".join(self._type(found["body"])))
        return found[0]

    def _write(self, said: str, code: str) -> None:
        if name := re.fullmatch(r"# (\w+\.py)", said):
            (self.folder / name[1]).write_text(code)
        elif name := re.fullmatch(r"# at the end of (\w+\.py)", said):
            with (self.folder / name[1]).open("a") as file:
                file.write(code)
        elif name := re.fullmatch(r"# in (\w+\.py), instead of: (.*)", said):
            before = (self.folder / name[1]).read_text()
            assert before.count(name[2]) == 1
            (self.folder / name[1]).write_text(before.replace(name[2], code.strip()))
        else:
            pytest.fail(f"Where does this go? {said}")

    def _type(self, body: str) -> Iterator[str]:
        for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", body, re.M):
            typed = KILL.sub(f"kill -9 {self.process}", command)
            answer = self._answer(typed, shown)
            assert WRITES or masked(answer) == masked(shown), f"$ {typed}\n{answer}"
            self.process = "".join(OWNER.findall(answer)) or self.process
            kept = re.sub(MASKS[0][0], "", answer).replace(f":{self.port}/", ":5580/")
            yield f"$ {typed}\n" + "".join(f"{line.rstrip()}\n" for line in kept.splitlines())

    def _answer(self, command: str, shown: str) -> str:
        for said, instead in INSTEAD.items():
            command = re.sub(said, instead.format(prefix=sys.prefix, port=self.port), command)
        answer = self.terminal.type(command)
        if command.startswith(LOOKS):
            same: Callable[[str], Any] = gist if WRITES else masked
            looked = [answer]

            def seen() -> bool:
                if same(looked[-1]) != same(shown):
                    looked.append(self.terminal.type(command))
                return same(looked[-1]) == same(shown)

            with suppress(AssertionError):
                until(seen, PATIENCE_S)
            answer = looked[-1]
        return answer

    def _click(self, names: list[str]) -> None:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_page(base_url=f"http://127.0.0.1:{self.port}", viewport=WIDE)
            page.goto("/")
            for name in names:
                page.get_by_text(name, exact=True).first.click()
            expect(page.get_by_text(re.compile("Done|Requeued"))).to_be_visible()
            browser.close()


INSTEAD = {
    r"^python3 -m venv \.venv": "ln -s {prefix} .venv",
    r"^pip install .*": "true",
    r"^tasks-app dashboard": "tasks-app dashboard --port {port}",
}
"""Nothing is downloaded, and no port is taken that may be another's."""


@pytest.mark.test_all
@pytest.mark.timeout(600, method="thread")
@pytest.mark.skipif(not CHROMIUM, reason="No Chromium was found. Run: apt-get install chromium")
def test_the_tutorial_works_as_it_is_printed(open_folder: Path) -> None:
    page = PAGE.read_text()
    with Terminal(open_folder) as terminal:
        reader = Reader(terminal, open_folder / "shop", free_port())
        try:
            today = reader.follow(page)
        finally:
            terminal.type("kill -9 $(jobs -p); cd " + str(open_folder / "shop"))
            terminal.type("tasks-app down")
    if WRITES:
        PAGE.write_text(today)


README = text_of("README.md")
PRODUCING = text_of("docs/producing.md")


def test_it_is_shorter_than_ten_kilobytes() -> None:
    assert len(README.encode()) < 10_000


def test_it_has_at_most_130_lines() -> None:
    assert len(README.splitlines()) <= 130


def test_it_begins_with_three_sentences_and_a_program() -> None:
    why, code, _ = README.split("```", 2)
    assert len(re.findall(r"\.(?:\s|$)", why)) == 3
    assert code.startswith("python\n# shop.py\n")


@pytest.mark.test_all
@pytest.mark.timeout(300, method="thread")
def test_the_program_and_the_first_steps_work_as_they_are_printed(open_folder: Path) -> None:
    with Terminal(open_folder) as terminal:
        try:
            Reader(terminal, open_folder, free_port()).follow(README)
        finally:
            terminal.type("tasks-app down")


def test_a_refusal_reads_as_printed(connection: Connection) -> None:
    (session,) = blocks(PRODUCING, "pycon")
    call, answer = session.removeprefix(">>> ").splitlines()
    with pytest.raises(ValueError, match="payload") as refusal:
        eval(call, {"create_task": create_task, "session": connection})
    assert f"{type(refusal.value).__name__}: {refusal.value}" == answer


def test_a_task_is_created_from_sql(connection: Connection) -> None:
    (statement,) = blocks(PRODUCING, "sql")
    task = get_task(connection, connection.exec_driver_sql(statement).scalar_one())
    assert (task.name, task.payload, task.biz_key) == ("mail.send", {"to": "ann"}, "order:42")
    assert (task.due_at - task.created_at).total_seconds() == 5


@pytest.mark.test_all
def test_a_producer_imports_no_celery() -> None:
    check = (
        "import sys; from tasks_app import *;"
        " sys.exit(bool({'celery', 'kombu', 'redis'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_its_promises_are_numbered_as_everywhere() -> None:
    assert re.findall(r"^- \*\*(P\d)\*\*", README, re.MULTILINE) == [f"P{n}" for n in range(1, 8)]


BLOCK = re.compile(
    r"(?<=<!-- sitting: begin -->\n```console\n).*?(?=```\n<!-- sitting: end -->)", re.S
)
PAGES = [page for page in DOCUMENTS if BLOCK.search(page.read_text())]
NUMBERS = (
    r"\bjust now\b|\bin \d+ (s|min|h)\b|\b\d+ (s|min|h) ago\b",
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?([+-]\d\d:\d\d|Z| UTC)?",
    r"\b\d+(\.\d+)? ?(ms|s|MiB|KiB|B)\b",
    r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b",
    r"\S+@\S+",
)
"""What is different every time: instants, spans, keys, who sits where."""


def failed(engine: Engine, task_id: int) -> None:
    with engine.begin() as connection:
        (task,) = claim(connection, [task_id], claimer("mail.send"), uuid4(), Claims.ADMITTED)
        cause = Cause("SMTPServerDisconnected", "Connection unexpectedly closed")
        settle_one(connection, ending(task, Event.FAIL, failures=1, cause=cause))


def grouped(engine: Engine) -> None:
    with engine.begin() as connection:
        members = [NewTask("points.grant", {"order_id": number}) for number in (7, 8)]
        create_group(connection, members, then=NewTask("report.make"))


def depending(engine: Engine) -> None:
    with engine.begin() as connection:
        circuit_breakers.synchronise(connection, {Breaker("bank"): ["bank.pay"]}, ["bank.pay"])


def teller(engine: Engine) -> None:
    TAKEN.append(locks.hold(engine, exclusive="account:7", who="teller").take())


TAKEN: list[Any] = []
SCENES: dict[str, Callable[[Engine], Any]] = {
    "a worker runs task 1 in vain": lambda engine: failed(engine, 1),
    "a program creates a group": grouped,
    "a teller takes a lock on account:7": teller,
    "a worker starts whose handler bank.pay depends on the bank": depending,
}


@pytest.fixture
def run(shell: Shell, engine: Engine) -> Iterator[Shell]:  # noqa: F811
    with engine.begin() as connection:
        for table in ("task_pending", "task_audit", "task_group"):
            sequence = f"pg_get_serial_sequence('{table}', 'id')"
            connection.execute(text(f"SELECT setval({sequence}, 1, false)"))
    yield shell
    for lock in TAKEN:
        with suppress(locks.LockLostError):
            lock.release()
    TAKEN.clear()


def typed(script: str, run: Shell, engine: Engine) -> str:
    lines: list[str] = []
    for line in script.splitlines():
        if line.startswith("# "):
            SCENES[line[2:]](engine)
        elif line.startswith("$ "):
            done = run(*shlex.split(line[2:])[1:])
            lines += [line, *(done.stdout + done.stderr).rstrip("\n").splitlines()]
            continue
        else:
            continue
        lines.append(line)
    return "\n".join(each.rstrip() for each in lines) + "\n"


def timeless(transcript: str) -> str:
    for pattern in NUMBERS:
        transcript = re.sub(pattern, "…", transcript)
    return re.sub(r" +|-{2,}", " ", transcript)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_shows_what_the_commands_answer(page: Path, run: Shell, engine: Engine) -> None:
    shown = page.read_text()
    answered = BLOCK.sub(lambda block: typed(block[0], run, engine), shown)
    if os.environ.get("SITTING") == "write":
        page.write_text(answered)
    else:
        assert timeless(answered) == timeless(shown)


def verbs(command: click.Command, *before: str) -> Iterator[tuple[str, ...]]:
    if isinstance(command, click.Group):
        with click.Context(command) as context:
            names = command.list_commands(context)
            some = [(name, command.get_command(context, name)) for name in names]
        shown = [(name, each) for name, each in some if each and not each.hidden]
        yield from chain.from_iterable(verbs(each, *before, name) for name, each in shown)
    else:
        yield before


@pytest.mark.parametrize("verb", list(verbs(group)), ids=" ".join)
def test_each_command_is_on_a_page(verb: tuple[str, ...]) -> None:
    written = (page for page in (PROJECT / "docs").rglob("*.md") if page.parent.name != "reference")
    pages = "\n".join(page.read_text() for page in written)
    shown = re.search(rf"^\$ tasks-app {' '.join(verb)}\b", pages, re.M)
    assert shown or f"`tasks-app {' '.join(verb)}" in pages


PROMPT = "<ready>"
COLUMNS = 160
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
LONGEST_S = 60
"""That a command may take."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class Terminal:
    """An interactive bash: it has jobs, and `kill %1` means all processes of one."""

    def __init__(self, folder: Path) -> None:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
        mode = termios.tcgetattr(theirs)
        mode[3] &= ~termios.ECHO
        termios.tcsetattr(theirs, termios.TCSANOW, mode)
        known = ("TASKS_APP_", "PYTHONPATH", "VIRTUAL_ENV", "PS1", "PROMPT_COMMAND", "COLUMNS")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(known)}
        self._file = ours
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "--noediting", "-i"],
            cwd=folder,
            env={
                **clean,
                "PS1": PROMPT,
                "PS2": "",
                "TERM": "dumb",
                "VIRTUAL_ENV_DISABLE_PROMPT": "1",
            },
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509  a tty has jobs
        )
        os.close(theirs)
        self._read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.write(self._file, b"exit\nexit\n")  # the first one is told of jobs that are left
        try:
            self._shell.wait(20)
        except subprocess.TimeoutExpired:
            self._shell.kill()
            self._shell.wait()
        os.close(self._file)

    def type(self, command: str) -> str:
        """Return what is answered before the next prompt."""
        os.write(self._file, f"{command}\n".encode())
        return self._read()

    def _read(self) -> str:
        said, end = "", time.monotonic() + LONGEST_S
        while not said.endswith(PROMPT):
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._file], [], [], left)[0]:
                raise TimeoutError(f"No prompt after {LONGEST_S} s. It said: {said}")
            said += os.read(self._file, 65_536).decode(errors="replace")
        return ESCAPES.sub("", said.removesuffix(PROMPT)).replace("\r\n", "\n")
