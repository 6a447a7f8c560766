"""The tutorial is carried out by a shell on a terminal, in an empty folder, in its order.

``TUTORIAL=write`` writes the answers of today into the page instead.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect, sync_playwright

from tests.dashboard.chromium import CHROMIUM, WIDE
from tests.docs.reading import PROJECT
from tests.docs.terminal import Terminal, free_port
from tests.docs.test_sitting import timeless
from tests.waiting import until

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

pytestmark = [
    pytest.mark.test_all,
    pytest.mark.test_all,
    pytest.mark.timeout(600, method="thread"),
    pytest.mark.skipif(not CHROMIUM, reason="No Chromium was found. Run: apt-get install chromium"),
]


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
