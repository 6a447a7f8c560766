"""``tasks-app schedules`` as an operator uses it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine, text

from tests.cli.shell import Shell

DAILY = ("--cron", "30 2 * * *", "--timezone", "Europe/Berlin")


def next_runs(engine: Engine) -> dict:
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT name, next_run_at FROM task_schedules"))
        return {row.name: row.next_run_at for row in rows}


def test_eighty_columns_hold_whole_words(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "customers.points.of.the.month.are.granted.every.night"
    shell("schedules", "add", long, "cli.echo", *DAILY)
    monkeypatch.setenv("COLUMNS", "80")
    lines = shell("schedules", "list").stdout.splitlines()
    wide = shell("schedules", "list", "--wide").stdout.splitlines()
    assert len(lines) == len(wide) == 2
    assert max(map(len, lines)) <= 80
    assert re.match(r"^customer\S*…  cli\.echo  cron \S", lines[1])
    assert re.search(r"  yes +in \d+ (h|min|s)", lines[1])
    assert re.search(rf"^{long}  cli\.echo .* Europe/Berlin  yes +20.*Z", wide[1])


def test_a_schedule_of_a_misspelt_name_is_added_with_a_hint(shell: Shell) -> None:
    misspelt, known = (
        shell("schedules", "add", name, name, *DAILY) for name in ("cli.ecko", "cli.echo")
    )
    assert misspelt.returncode == 0
    assert misspelt.stderr == (
        "TASKS_APP_IMPORTS has no handler cli.ecko. Did you mean cli.echo?"
        " Then remove the schedule: tasks-app schedules remove cli.ecko.\n"
    )
    assert known.stderr == ""


def test_a_schedule_is_added_listed_shown_and_removed(shell: Shell) -> None:
    added = shell("schedules", "add", "night", "cli.echo", '{"n": 1}', *DAILY, "--overlap", "skip")
    (listed,) = shell.json("schedules", "list")
    shown = shell.json("schedules", "show", "night")
    table = shell("schedules", "list").stdout
    fields = shell("schedules", "show", "night").stdout
    removed = shell("schedules", "remove", "night")

    assert added.returncode == 0
    assert re.fullmatch(
        r"At 02:30 every day, by the clocks of Europe/Berlin\.\nNext: 20.*Z\n", added.stdout
    )
    assert {**listed, "last_task_state": None} == shown
    assert (shown["payload"], shown["overlap"], shown["zone"]) == (
        {"n": 1},
        "skip",
        "Europe/Berlin",
    )
    assert re.search(r"^night +cli\.echo +cron 30 2 \* \* \* Europe/Berlin +yes ", table, re.M)
    assert "At 02:30 every day" in fields
    assert removed.stdout == "Schedule night was removed. Its tasks stay.\n"
    assert shell.json("schedules", "list") == []


def test_it_is_disabled_and_enabled(shell: Shell, engine: Engine) -> None:
    shell("schedules", "add", "often", "t", "--every", "15m")
    assert shell("schedules", "disable", "often").stdout.startswith("Paused.")
    assert next_runs(engine) == {"often": None}
    told = shell("schedules", "enable", "often").stdout
    assert re.fullmatch(r"Resumed, from now on. Next: 20.*Z\n", told)
    assert next_runs(engine)["often"] is not None


@pytest.mark.test_all
def test_it_tells_what_became_of_the_last_task(shell: Shell, engine: Engine) -> None:
    shell("schedules", "add", "soon", "cli.echo", "--every", "1h")
    with engine.begin() as connection:
        connection.execute(
            text("""UPDATE task_schedule SET created_at = created_at - interval '1 hour',
                next_run_at = created_at, look_at = created_at""")
        )
    shell.process("work", "--alone", "--drain")
    shown = shell.json("schedules", "show", "soon")
    assert (shown["last_outcome"], shown["last_task_state"]) == ("made", "SUCCEEDED")


def test_it_is_changed(shell: Shell) -> None:
    shell("schedules", "add", "often", "t", "--every", "15m")
    changed = shell("schedules", "change", "often", "--every", "1h", "--payload", '{"n": 2}')
    shown = shell.json("schedules", "show", "often")
    assert changed.stdout.startswith("Every 1h, counted from ")
    assert (shown["expression"], shown["payload"]) == ("1h", {"n": 2})


def test_a_preview_changes_nothing(shell: Shell, engine: Engine) -> None:
    tried = shell("schedules", "preview", *DAILY, "--starts-at", "2030-03-30T12:00Z", "-n", "2")
    assert tried.stdout == (
        "At 02:30 every day, by the clocks of Europe/Berlin.\n"
        "2030-03-31 01:00:00Z\n2030-04-01 00:30:00Z\n"
    )
    shell("schedules", "add", "night", "t", *DAILY)
    before = next_runs(engine)
    shown = shell("schedules", "preview", "night")
    assert len(shown.stdout.splitlines()) == 6
    assert next_runs(engine) == before


def test_the_past_is_filled_up_once(shell: Shell) -> None:
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    span = (str(today - timedelta(days=3)), str(today))
    shell("schedules", "add", "night", "t", "--cron", "0 12 * * *")
    first, second = (shell("schedules", "backfill", "night", *span) for _ in range(2))
    assert (first.stdout, second.stdout) == ("3 tasks created\n", "0 tasks created\n")
    assert len(shell.json("list", "--name", "t")) == 3


def test_a_schedule_is_run_now_and_fires_as_before(shell: Shell, engine: Engine) -> None:
    shell("schedules", "add", "night", "cli.echo", '{"n": 1}', *DAILY, "--jitter", "1h")
    shell("schedules", "disable", "night")
    assert re.search(r"^jitter +1h$", shell("schedules", "show", "night").stdout, re.M)
    before = next_runs(engine)

    made = shell.json("schedules", "run", "night")
    told = shell("schedules", "run", "night")
    task = shell.json("show", str(made["id"]))["task"]
    lines = shell.json("audit", "--action", "schedule run")

    assert (made["name"], made["created"], task["payload"]) == ("night", True, {"n": 1})
    assert "night" in str(task["headers"])
    assert re.match(r"Task \d+ was created\.", told.stdout)
    assert next_runs(engine) == before
    assert made["id"] in lines[1]["ids"]
    with engine.connect() as connection:
        of = connection.execute(
            text(
                "SELECT s.name, p.due_at <= now() FROM task_pending p JOIN task_schedule s"
                " ON s.id = p.schedule_id"
            )
        ).all()
    assert [tuple(row) for row in of] == [("night", True)] * 2
    assert shell("schedules", "run", "day").returncode == 1


def test_days_off(shell: Shell) -> None:
    shell("queues", "calendar", "de", "2030-12-24,2030-12-25")
    from_the_23rd = ("--cron", "0 7 * * *", "--starts-at", "2030-12-23T00:00Z")
    off = ("--calendar", "de", "--on-day-off", "next_working_day")

    unknown = shell("schedules", "add", "day", "cli.echo", *from_the_23rd, "--calendar", "fr")
    added = shell("schedules", "add", "day", "cli.echo", *from_the_23rd, *off)
    seen = shell("schedules", "preview", *from_the_23rd, *off, "-n", "2").stdout
    shown = shell.json("schedules", "show", "day")
    removed = shell("schedules", "change", "day", "--calendar", "")

    assert "calendar 'fr' does not exist. Allowed: de" in unknown.stderr
    assert "on the next working day after weekends and days of de" in added.stdout
    assert re.findall(r"2030-12-(\d\d)", seen) == ["23", "26"]
    assert (shown["calendar"], shown["on_day_off"]) == ("de", "next_working_day")
    assert "days of de" not in removed.stdout
