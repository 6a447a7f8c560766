"""``tasks-app schedules`` and ``tasks-app batch`` as an operator uses them."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from tasks_app.batch.progress import JobProgress
from tasks_app.batch.validate import split
from tasks_app.domain.partition.records import Table
from tasks_app.pool.batch import instances
from tasks_app.pool.batch.sources import buckets
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


def test_a_schedule_is_disabled_and_enabled(shell: Shell, engine: Engine) -> None:
    shell("schedules", "add", "often", "t", "--every", "15m")
    assert shell("schedules", "disable", "often").stdout.startswith("Paused.")
    assert next_runs(engine) == {"often": None}
    told = shell("schedules", "enable", "often").stdout
    assert re.fullmatch(r"Resumed, from now on. Next: 20.*Z\n", told)
    assert next_runs(engine)["often"] is not None


@pytest.mark.test_all
def test_a_schedule_tells_what_became_of_its_last_task(shell: Shell, engine: Engine) -> None:
    shell("schedules", "add", "soon", "cli.echo", "--every", "1h")
    with engine.begin() as connection:
        connection.execute(
            text("""UPDATE task_schedule SET created_at = created_at - interval '1 hour',
                next_run_at = created_at, look_at = created_at""")
        )
    shell.process("work", "--alone", "--drain")
    shown = shell.json("schedules", "show", "soon")
    assert (shown["last_outcome"], shown["last_task_state"]) == ("made", "SUCCEEDED")


def test_a_schedule_is_changed(shell: Shell) -> None:
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


def work(run: Shell) -> None:
    ended = run.process("work", "--drain")
    assert ended.returncode == 0, ended.stderr


@pytest.mark.test_all
def test_a_job_is_started_shown_and_listed(run: Shell) -> None:
    started = run("batch", "start", "payroll", '{"month": "2026-10"}')
    batch_id = started.stdout.strip()
    again = run("batch", "start", "payroll", '{"month": "2026-10"}')
    work(run)
    shown = run("batch", "show", batch_id).stdout
    facts = run.json("batch", "show", batch_id)
    (listed,) = run.json("batch", "list", "--status", "COMPLETED")
    complete = run("batch", "start", "payroll", '{"month": "2026-10"}')
    parts = run("batch", "partitions", batch_id, "--step", "check").stdout

    assert (started.returncode, again.returncode, complete.returncode) == (0, 1, 1)
    assert "is RUNNING. Wait" in again.stderr
    assert "is complete with these parameters" in complete.stderr
    assert re.search(r"^status +COMPLETED", shown, re.MULTILINE)
    assert re.search(r"^check +COMPLETED +#{20} 4/4 +40 +0 ", shown, re.MULTILINE)
    assert facts["figures"]["pay"]["read"] == 40
    assert (listed["id"], listed["params"]) == (int(batch_id), {"month": "2026-10"})
    assert re.search(r"^check +1 +key < 11 +COMPLETED +#{10} +10 +10 +0 ", parts, re.MULTILINE)


@pytest.mark.test_all
def test_a_batch_that_fails_is_restarted_and_what_it_left_out_is_shown(
    run: Shell, tmp_path: Path
) -> None:
    (tmp_path / "bad").touch()
    batch_id = run("batch", "start", "payroll", '{"month": "x"}').stdout.strip()
    work(run)
    failed = run.json("batch", "show", batch_id)
    parts = run("batch", "partitions", batch_id).stdout
    (tmp_path / "bad").unlink()

    restarted = run("batch", "restart", batch_id)
    work(run)

    assert (failed["batch"]["status"], failed["batch"]["error"]) == ("FAILED", "failed: check")
    assert "Row 15 of partition 2 fails (ValueError: odd)" in re.sub(r"\s+", " ", parts)
    assert restarted.stdout == "It goes on, run 2.\n"
    assert run.json("batch", "show", batch_id)["batch"]["status"] == "COMPLETED"


def test_steps_are_shown_in_the_order_of_the_plan(run: Shell, engine: Engine) -> None:
    batch_id = run("batch", "start", "sorted").stdout.strip()
    with engine.begin() as connection:  # rows move when they are written
        connection.execute(text("UPDATE task_batch_step SET error = 'x' WHERE step = 'take'"))
    steps = run("batch", "show", batch_id).stdout.rpartition("skew")[2].splitlines()[1:]
    assert [line.split()[0] for line in steps] == ["take", "post", "end"]
    assert [s["step"] for s in run.json("batch", "show", batch_id)["steps"]] == [
        *("take", "post", "end")
    ]


def test_eighty_columns_hold_whole_words_of_a_batch(
    run: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters = '{"month": "the second half of the month of October, and of November as well"}'
    batch_id = run("batch", "start", "payroll", parameters).stdout.strip()
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("batch", "list").stdout.splitlines()
    wide = run("batch", "list", "--wide").stdout.splitlines()
    assert len(lines) == len(wide) == 2
    assert max(map(len, lines)) <= 80
    assert lines[1].split()[:3] == [batch_id, "RUNNING", "payroll"]
    assert lines[1].endswith("…")
    assert "November as well" in wide[1]


@pytest.mark.test_all
def test_a_batch_is_stopped_and_abandoned(run: Shell) -> None:
    batch_id = run("batch", "start", "payroll", '{"month": "x"}').stdout.strip()
    refused = run("batch", "abandon", batch_id)
    stopped = run("batch", "stop", batch_id)
    work(run)
    abandoned = run("batch", "abandon", batch_id)
    unknown = run("batch", "show", "12345")

    assert "Stop it first" in refused.stderr
    assert stopped.stdout == "Stopping.\n"
    assert abandoned.stdout == "Abandoned.\n"
    assert (unknown.returncode, unknown.stderr) == (
        1,
        "There is no batch 12345. Run: tasks-app batch list\n",
    )


def test_what_has_not_started_is_divided_while_it_runs(run: Shell, engine: Engine) -> None:
    batch_id = run("batch", "start", "payroll", '{"month": "x"}').stdout.strip()
    early = run("batch", "replan", batch_id, "--step", "check", "--divide", "2")
    job = sys.modules["tasks_app.batch.job"].JOBS["payroll"]
    with engine.begin() as connection:  # as its plan does, which nobody has run
        locked = instances.lock(connection, int(batch_id))
        assert locked is not None
        progress, check = JobProgress(job, connection, locked), job.steps["check"]
        progress.insert_plan(check, split(connection, check, None))
        progress.start_partitions(check)
    divided = run("batch", "replan", batch_id, "--step", "check", "--divide", "2")
    unknown = run("batch", "replan", batch_id, "--step", "chek", "--divide", "2")

    assert early.returncode == 1
    assert "its step check PLANNING: no partition runs" in early.stderr
    assert divided.stdout == "4 partitions more\n"
    assert "has no step chek. Name one of: check, pay." in unknown.stderr
    assert run.json("batch", "show", batch_id)["tallies"]["check"]["total"] == 8


def test_a_bucket_gets_another_modulus(run: Shell, engine: Engine) -> None:
    with engine.begin() as connection:
        buckets.add_bucket(connection, Table("person"), "bucket", 2)

    done = run("batch", "rebalance", "person", "bucket", "3")
    again = run("batch", "rebalance", "person", "bucket", "3")
    unknown = run("batch", "rebalance", "nobody", "bucket", "3")

    assert done.stdout == "40 rows written, bucket is by 3 now\n"
    assert (again.returncode, unknown.returncode) == (2, 2)
    assert "bucket of person already has the modulus 3." in again.stderr
    assert "The database does not compute bucket of nobody." in unknown.stderr
    with engine.begin() as connection:
        most = connection.execute(text("SELECT max(bucket) FROM person")).scalar()
        connection.execute(text('DROP FUNCTION "person:tasks_app:bucket:3" CASCADE'))
    assert most == 2


def test_plans_are_shown_judged_and_kept(run: Shell, engine: Engine) -> None:
    shown = run("batch", "plan", "payroll", '{"month": "x"}', "--dry-run", "--step", "check")
    right = run("batch", "validate", "payroll", '{"month": "x"}')
    wrong = run("batch", "validate", "gapped")
    refused = run("batch", "validate", "payroll", '{"year": 1}')
    with engine.connect() as connection:
        before = connection.execute(text("SELECT count(*) FROM task_partition")).scalar()
    run("batch", "plan", "payroll", '{"month": "x"}', "--step", "check")
    with engine.connect() as connection:
        programs = connection.execute(
            text("SELECT program_id, count(*) FROM task_partition GROUP BY 1")
        ).all()

    assert "check: 4 partitions by even, exact, 40 rows" in shown.stdout
    assert re.search(r"^2 +11 <= key < 21 +10", shown.stdout, re.MULTILINE)
    assert "pay: 2 partitions" in right.stdout
    assert wrong.returncode == 2
    assert "10" in wrong.stderr
    assert "12" in wrong.stderr
    assert "params.month of job payroll is refused" in refused.stderr
    assert before == 0
    assert programs == [("payroll.check", 4)]
