"""What commands refuse: the exit code, the words, and that nothing is written."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from tests.cli.shell import Shell

CAUSE = "2a15a26ad4bbc789"
WRONG = [
    ("create 'bad name'", "name is 'bad name'"),
    ("create t [1]", "payload is of type list"),
    ("create t {", "isn't JSON"),
    ("create t --priority 12", "options.priority is 12"),
    ("create t --delay soon", "options.delay"),
    ("create t --run-at tomorrow", "ISO 8601"),
    ("create t --run-at 2030-01-01T00:00:00", "no time zone"),
    ("cancel", "This selects every task"),
    ("requeue --pool error", "This selects every task"),
    ("cancel --older-than soon", "older_than is 'soon'"),
    ("cancel 7 --why \udcff", "An argument is not UTF-8."),
    ("edit 1", "Give --set"),
    ("edit 1 --set a=text", "a isn't JSON"),
    ("edit 1 --set a", "a has no ="),
    ("edit 1 --merge [1]", "must be a JSON object"),
    ("hold", "This selects every task. Select by name, queue, ids, …"),
    ("reschedule 1", "reschedule needs at or delay. Give one."),
    ("reschedule 1 --at tomorrow", "is 'tomorrow'. Allowed: an ISO 8601 instant"),
    ("reschedule 1 --at 2031-01-01T00:00", "has no time zone"),
    ("reschedule 1 --in soon", "is 'soon', which is not a duration"),
    ("reprioritise 1 --to 10", "10 is not in the range"),
    ("reprioritise 1", "Missing option '--to'"),
    ("move 1 --to 'a b'", "is 'a b'"),
    ("run-now 1 --rate fast", "options.rate is not a rate. Allowed: a number and a"),
    ("erase", "--biz-key"),
    ("export tasks.jsonl", "This selects every task"),
    ("export there --name t", "there exists already"),
    ("export - --name t", "it holds payloads"),
    ("export no/folder/tasks.jsonl --name t", "cannot be written"),
    ("import no_such_file", "no_such_file cannot be read"),
    ("import there", "Line 1 is not a task"),
    ("maintain --reindex --index no_such_index", "tasks_app has no index no_such_index"),
    ("maintain --index task_limit_pkey", "--index goes with --reindex"),
    ("errors show 12", "'12' is not a fingerprint. Give the 16 digits"),
    (f"errors requeue {CAUSE} --stages 1,all", "--stages: are numbers from 1 and 'rest'"),
    (f"errors requeue {CAUSE} --first 1 --stages 1", "Give --first or --stages, not both."),
    (f"errors requeue {CAUSE} --patience soon", "--patience: is 'soon', which is not a duration"),
    (f"errors known {CAUSE} --until tomorrow", "'tomorrow' isn't an ISO 8601 instant"),
    (f"errors known {CAUSE} --until 2026-01-01T12:00", "has no time zone"),
    ("pause", "Give a queue, or --all"),
    ("resume mail --all", "Give a queue, or --all"),
    ("pause 'no queue'", "queue is 'no queue'"),
    ("fair mail --weight a=0", "weights.a is 0.0. Allowed: 0.001 .. 1000."),
    ("fair mail --weight a", "'a' isn't key=number"),
    ("limits set queue mail", "limit limits nothing. Allowed: most, rate, or both."),
    ("limits set queue 'a b' --most 1", "text that matches"),
    (
        "limits set name t --rate often",
        "limit.rate is not a rate. Allowed: a number and a time, such as 100/1m",
    ),
    ("limits set name t --rate 100/1s --burst 9", "at least 10"),
    ("limits set name t --most 1 --burst 9", "without a rate"),
    ("limits set key t --most -1", "an integer 0"),
    ("schedules add s t", "when is not given"),
    ("schedules add s t --cron x", "cron is 'x'"),
    ("schedules add s t --every 1h --timezone Mars", "timezone is 'Mars'"),
    ("schedules add s t --at 2020-01-01T00:00Z", "when never comes"),
    ("schedules add s t --at soon", "an ISO 8601 instant"),
    ("schedules add s t [1] --every 1h", "JSON object"),
    ("schedules add s t --every 1h --missed x", "missed is 'x'"),
    ("schedules preview", "Give a name, or --cron"),
    ("schedules preview s --every 1h", "Give a name, or --cron"),
    ("schedules backfill s x y", "an ISO 8601 instant"),
    ("report --since=5x", "--since': '5x' isn't a time. Write 24h, 7d or an instant"),
    ("report --since=tomorrow", "--since"),
    ("report --since=-1h", "--since"),
    ("report --since=2999-01-01T00:00:00Z", "--since"),
    ("report --since=0s", "--since"),
    ("report --since=9999-12-31T23:59:59-23:59", "--since"),
    ("report --html /nowhere/report.html", "--html"),
    ("metrics --address 0.0.0.0 --port 0", "Metrics have no password"),
    ("work --drain --queue mail,", "no queue is called"),
    ("work --drain --queue 'a b'", "no queue is called"),
    ("work --drain --queue 'mail;reports'", "no queue is called"),
    ("encryption new-key 2026.11", "An id has up to 40 letters, digits, - and _."),
    ("nonsense", "has no command"),
    ("lst", "tasks-app has no command 'lst'. Did you mean: tasks-app list?"),
    ("retry 4", "Did you mean: tasks-app requeue?"),
    ("limits rm", "tasks-app limits has no command 'rm'. Did you mean: tasks-app limits remove?"),
    ("limits xyzzy", "has no command 'xyzzy'. It has: list, remove, set."),
    ("schedules delete x", "Did you mean: tasks-app schedules remove?"),
    ("beat", "tasks-app has no beat. Run: celery -A tasks_app beat"),
    ("remove 4", "Did you mean: tasks-app cancel?"),
    ("cancel 4 --reason x", "Did you mean --why?"),
    ("create t --countdown 5", "Did you mean --delay?"),
    ("create t --eta 5", "Did you mean --run-at?"),
]


@pytest.mark.parametrize(("typed", "words"), WRONG, ids=[ascii(typed) for typed, _ in WRONG])
def test_wrong_usage_exits_with_2_says_what_is_wrong_and_writes_nothing(
    shell: Shell, engine: Engine, typed: str, words: str
) -> None:
    Path("there").write_text("{}\n")
    done = shell(*shlex.split(typed))
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert words in done.stderr
    assert [file.name for file in Path().iterdir() if file.name in ("-", "tasks.jsonl")] == []
    with engine.connect() as connection:
        for table in ("pending", "schedule", "limit", "queue_pause", "queue_fair", "audit"):
            count = connection.execute(text(f"SELECT count(*) FROM task_{table}"))
            assert count.scalar() == 0, table


ABSENT = [
    ("show 999999999", "tasks-app list"),
    ("show 1000000000 --trail", "There is no task 1000000000"),
    ("requeue 999999999", "999999999  not found\n"),
    ("cancel 999999999", "999999999  not found\n"),
    ("explain 999999999", "There is no task 999999999 in any pool."),
    ("unblock 999", "There is no task 999."),
    ("audit 1000000000", "There is no line 1000000000. Run: tasks-app audit\n"),
    (
        "errors unknown 0000000000000000",
        "0000000000000000 is not marked as known. Run: tasks-app errors\n",
    ),
    (
        "errors known 0000000000000000",
        "No failed task has 0000000000000000. Run: tasks-app errors\n",
    ),
    ("groups show 7", "There is no group 7"),
    ("flows show 7", "There is no flow 7. Run: tasks-app flows list\n"),
    ("flows cancel 7", "There is no flow 7. Run: tasks-app flows list\n"),
    ("batch show 12345", "There is no batch 12345. Run: tasks-app batch list\n"),
    ("limits drop name t", "There is no limit of name t. Run: tasks-app limits list"),
    ("locks free a", "a is not held. Run: tasks-app locks list\n"),
    *(
        (f"schedules {verb} nobody", "There is no schedule nobody. Run: tasks-app schedules list")
        for verb in ("show", "enable", "disable", "remove", "preview", "change", "run")
    ),
]


@pytest.mark.parametrize(("typed", "words"), ABSENT, ids=[typed for typed, _ in ABSENT])
def test_what_is_not_there_exits_with_1_and_the_next_command(
    shell: Shell, typed: str, words: str
) -> None:
    done = shell(*typed.split())
    assert done.returncode == 1
    assert words in done.stdout + done.stderr
