"""The schema of a measurement: only what nobody uses is dropped; each without one rule."""

from __future__ import annotations

from torture.mutants.change import mutant

SCHEMA = "tasks_app/pool/operations/bench_schema.py"
ONLY = "tests/cli/test_bench.py::test_only_what_a_killed_run_left_is_dropped"

SIZING = (
    mutant(
        "bench: the comment",
        "A schema that is only named like one of a measurement is somebody else's.",
        SCHEMA,
        "      AND obj_description(n.oid, 'pg_namespace') = :says\n",
        "      AND :says <> ''\n",
        ONLY,
    ),
    mutant(
        "bench: the guard",
        "What another measurement still uses is not dropped.",
        SCHEMA,
        'if connection.execute(_ALONE, {"name": name}).scalar_one()]',
        "]",
        ONLY,
    ),
    mutant(
        "bench: SIGTERM",
        "SIGTERM leaves no schema behind.",
        "tasks_app/runtime/sizing/run.py",
        "            _stoppable(),\n",
        "",
        "tests/cli/test_bench.py::test_whoever_stops_it_finds_nothing_left",
    ),
)
