"""The design without one of its rules about batches, connections, and workers that stop."""

from __future__ import annotations

from dataclasses import replace

from verification.kinds import (
    BATCH,
    BATCH_OR_RAISES,
    KILLER_OF_CONNECTIONS,
    MAILS,
    ONCE,
    WRITES,
    WRITES_OR_RAISES,
)
from verification.rows import MAX_CRASHES
from verification.trial import Mutant, without
from verification.world import RunSetup

BATCHES = RunSetup((BATCH, BATCH_OR_RAISES), innocent=(0,), leases_never_lapse=True)
STOPS = RunSetup((MAILS, WRITES), faults={"sigterm": 1}, innocent=(0, 1))

ENDINGS = (
    Mutant(
        "a batch fails as a whole",
        "P3",
        without(BATCHES, "batch_that_fails_is_run_one_by_one"),
        "P3: an innocent neighbour was charged a failure (T0)",
        ("goes on to T1", "T1 raises", "flushes T0 (failed)"),
        quick=True,
    ),
    Mutant(
        "a batch without an answer is run again at once",
        "P6",
        without(
            replace(BATCHES, faults={"settle reply lost": 1}),
            "batch_without_an_answer_is_released",
        ),
        "P6: T0 starts without its claim, though no lease lapsed",
        ("batch COMMIT has no answer (it was applied)", "starts T0"),
        quick=True,
    ),
    Mutant(
        "a kept connection is not rolled back",
        "P4",
        without(RunSetup((WRITES_OR_RAISES, WRITES)), "kept_connections_are_rolled_back"),
        "P4: ",
        ("T0 is over in c0 (failed)", "T1 is committed"),
        quick=True,
    ),
    Mutant(
        "a lost connection counts nothing",
        "P3",
        without(
            RunSetup((KILLER_OF_CONNECTIONS,), most_runs=MAX_CRASHES),
            "lost_connection_counts_a_crash",
        ),
        f"P3: a task that kills was started {MAX_CRASHES + 1} times",
        ("ends its own connection", "releases T0") * MAX_CRASHES,
        quick=True,
    ),
    Mutant(
        "an outage makes suspects",
        "P3",
        without(
            RunSetup((WRITES,), faults={"connections lost": 1}, innocent=(0,)), "outages_acquit"
        ),
        "P3: 1 crashes were counted on an innocent neighbour (T0)",
        ("loses all its connections", "counts a crash on T0"),
        quick=True,
    ),
    Mutant(
        "who leaves keeps what has not started",
        "P3",
        without(STOPS, "leaving_gives_back_the_unstarted"),
        "P3: 1 crashes were counted on an innocent neighbour",
        ("is asked to stop", "ends, and is started again", "lapses", "is rescued"),
        quick=True,
    ),
    Mutant(
        "who leaves gives an at_most_once task back",
        "P5",
        without(RunSetup((ONCE,), faults={"sigterm": 1}), "leaving_ends_at_most_once_as_unknown"),
        "P5: an at_most_once task was started twice (T0)",
        ("is asked to stop", "is let go", "releases T0", "starts T0"),
        quick=True,
    ),
)
