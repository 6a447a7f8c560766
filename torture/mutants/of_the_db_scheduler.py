"""What the database does as scheduler; each without one rule."""

from __future__ import annotations

from torture.mutants.change import mutant

FIRING = "tasks_app/pool/db_scheduler/firing.py"
RUNNING = "tasks_app/pool/db_scheduler/running.py"
TIMING = "tasks_app/pool/db_scheduler/timing.py"
UPKEEP = "tasks_app/pool/db_scheduler/upkeep.py"
TESTS = "tests/pool/db_scheduler/test_functions.py::"

DB_SCHEDULER = (
    mutant(
        "db-scheduler: an instant once",
        "An instant that somebody has entered makes no second task.",
        FIRING,
        "IF what = '{Fired.MADE}' AND entered THEN",
        "IF what = '{Fired.MADE}' THEN",
        f"{TESTS}test_both_at_once_make_one_task",
    ),
    mutant(
        "db-scheduler: misfires",
        "What was missed goes by the schedule's policy.",
        FIRING,
        "IF missed <> 'fire_once' OR",
        "IF true OR",
        f"{TESTS}test_the_function_fires_what_the_scheduler_fires",
    ),
    mutant(
        "db-scheduler: who is fit",
        "What the database cannot fire as Python does is left alone.",
        FIRING,
        "IS NULL\n            ORDER BY x.look_at LIMIT 500",
        "IS NOT DISTINCT FROM NULL OR true\n            ORDER BY x.look_at LIMIT 500",
        f"{TESTS}test_what_the_database_does_not_fire_is_left_to_beat",
    ),
    mutant(
        "db-scheduler: clock changes",
        "What names a time of the day fires once on a day that has it twice.",
        TIMING,
        "IF found > after THEN",
        "IF true THEN",
        "tests/pool/db_scheduler/test_timing.py::test_the_days_on_which_clocks_change",
    ),
    mutant(
        "db-scheduler: let renew",
        "A lease is over for one renewal before the database rescues.",
        UPKEEP,
        '"grace": literal(settings.renew_every)',
        '"grace": "interval \'0\'"',
        f"{TESTS}test_a_lease_is_over_for_one_renewal_before_the_database_rescues",
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
        "test_a_task_whose_statement_was_taken_away_since_its_claim_waits_for_a_worker",
    ),
    mutant(
        "db-scheduler: deferred triggers",
        "What a deferred trigger refuses is charged, and ends no CALL.",
        RUNNING,
        "            SET CONSTRAINTS ALL IMMEDIATE;\n",
        "",
        "tests/pool/db_scheduler/test_statements.py::"
        "test_what_a_deferred_trigger_refuses_is_charged_and_others_go_on",
    ),
)
