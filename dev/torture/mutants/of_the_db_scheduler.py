"""What the database does as scheduler; each without one rule."""

from __future__ import annotations

from dev.torture.mutants.change import mutant

FIRING = "tasks_app/pool/db_scheduler/functions.py"
RUNNING = "tasks_app/pool/db_scheduler/running.py"
UPKEEP = "tasks_app/pool/db_scheduler/upkeep.py"
TESTS = "tests/pool/db_scheduler/test_firing.py::"
TESTS_OF_FIRING = "tests/pool/db_scheduler/test_firing.py::"

DB_SCHEDULER = (
    mutant(
        "db-scheduler: an instant once",
        "An instant that somebody has entered makes no second task.",
        FIRING,
        "            what := NULL;",
        "            NULL;",
        f"{TESTS_OF_FIRING}test_both_at_once_make_one_task",
    ),
    mutant(
        "db-scheduler: misfires",
        "What was missed goes by the schedule's policy.",
        FIRING,
        "instant < clock - {literal(ON_TIME)}",
        "false",
        f"{TESTS_OF_FIRING}test_a_run_does_as_python_then",
    ),
    mutant(
        "db-scheduler: the fence",
        "A job fires nothing of a schedule that has another zone by now.",
        FIRING,
        " AND x.zone = {_OWN}.zone",
        "",
        f"{TESTS_OF_FIRING}test_a_job_fires_nothing_of_what_its_schedule_is_not_any_more",
    ),
    mutant(
        "db-scheduler: whose instant",
        "An instant before the schedule's next one is nobody's.",
        FIRING,
        "(s.next_run_at <= instant) IS NOT TRUE",
        "instant IS NULL",
        f"{TESTS_OF_FIRING}test_an_instant_before_it_was_enabled_is_nobodys",
    ),
    mutant(
        "db-scheduler: let renew",
        "A lease is over for one renewal before the database rescues.",
        UPKEEP,
        '"grace": literal(settings.renew_every)',
        '"grace": "interval \'0\'"',
        f"{TESTS}test_a_lease_is_over_a_renewal_before_any_rescue",
    ),
    mutant(
        "db-scheduler: the lock of a run",
        "A run whose backend lives is not rescued: its row is locked.",
        RUNNING,
        "::jsonb ? p.name FOR NO KEY UPDATE;",
        "::jsonb ? p.name;",
        "tests/pool/db_scheduler/test_running.py::"
        "test_a_rescue_passes_a_run_by_until_its_backend_is_killed",
    ),
    mutant(
        "db-scheduler: the list of a run",
        "A task whose statement was taken away since its claim is not failed.",
        RUNNING,
        " AND {handlers}::jsonb ? p.name",
        "",
        "tests/pool/db_scheduler/test_running.py::"
        "test_a_task_that_lost_its_statement_waits_for_a_worker",
    ),
    mutant(
        "db-scheduler: deferred triggers",
        "What a deferred trigger refuses is charged, and ends no CALL.",
        RUNNING,
        "            SET CONSTRAINTS ALL IMMEDIATE;\n",
        "",
        "tests/pool/db_scheduler/test_running.py::"
        "test_what_a_deferred_trigger_refuses_is_charged_alone",
    ),
)
