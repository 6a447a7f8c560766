"""The design without one of its rules about connections, and workers that stop."""

from __future__ import annotations

from dev.verification.kinds import (
    KILLER_OF_CONNECTIONS,
    MAILS,
    ONCE,
    WRITES,
    WRITES_OR_RAISES,
)
from dev.verification.rows import MAX_CRASHES
from dev.verification.trial import Mutant, without
from dev.verification.world import RunSetup

STOPS = RunSetup((MAILS, WRITES), faults={"sigterm": 1}, innocent=(0, 1))

ENDINGS = (
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
