"""The design without one of its rules about order keys and limits."""

from __future__ import annotations

from dev.verification.gate_configurations import (
    BOTH,
    EXPIRES,
    NO_HANDS,
    OTHER,
    PAUSED,
    PLAIN,
)
from dev.verification.gate_world import GateSetup, Kind
from dev.verification.trial import Mutant, guarding_without

TWO = GateSetup((PLAIN, PLAIN))
SHARED = GateSetup((PLAIN, PAUSED, PAUSED, PLAIN), faults={"pause": 2})
NOBODY = GateSetup((PLAIN, NO_HANDS, PLAIN))
LATE = GateSetup((Kind(may=("stand still",)), EXPIRES), ordered=frozenset({0}), faults={"pause": 1})
CHAIN = GateSetup((Kind(may=("be cancelled",)), PLAIN), ordered=frozenset({0}), faults={"raise": 1})
CROSSED = GateSetup((OTHER, BOTH, OTHER, PLAIN))

GATES = (
    Mutant(
        "gates that are not locked",
        "P7",
        guarding_without(TWO, "claims_lock_their_gates"),
        "P7: 2 run at a time",
        ("takes it", "takes it"),
        quick=True,
    ),
    Mutant(
        "ends that wake nobody",
        "P2",
        guarding_without(TWO, "ends_wake_who_waits"),
        "P2: gate 0 had room for two seconds",
        ("is held", "is done"),
        quick=True,
    ),
    Mutant(
        "who holds does not look once more",
        "P2",
        guarding_without(TWO, "who_holds_looks_once_more"),
        "P2: gate 0 had room for two seconds",
        ("holds it", "nobody waits", "is held"),
        quick=True,
    ),
    Mutant(
        "a wake-up goes to the first in the line",
        "P2",
        guarding_without(SHARED, "wake_ups_go_to_who_may_run"),
        "P2: gate 0 had room for two seconds",
        ("the end of a run wakes", "a second later", "a second later"),
        quick=True,
    ),
    Mutant(
        "a wake-up is given once",
        "P2",
        guarding_without(NOBODY, "unused_wake_ups_are_repeated"),
        "P2: gate 0 had room for two seconds",
        ("wakes at gate 0",),
        quick=True,
    ),
    Mutant(
        "the held keep their other places",
        "P2",
        guarding_without(
            CROSSED, "the_held_leave_their_other_places", "unused_wake_ups_are_repeated"
        ),
        "P2: gate 1 had room for two seconds",
        ("wakes at gate 1", "T3 runs", "is held by gate 0"),
        quick=True,
    ),
    Mutant(
        "gates are never looked at",
        "P2",
        guarding_without(
            GateSetup((PLAIN, PLAIN), faults={"child crash": 1}), "gates_are_looked_at_at_last"
        ),
        "P2: stuck",
        ("is done", "the child dies"),
        quick=True,
    ),
    Mutant(
        "the late leave where the scan comes by",
        "P2",
        guarding_without(LATE, "the_late_leave_wherever_they_stand"),
        "P2: stuck",
        ("is held", "expires"),
        quick=True,
    ),
    Mutant(
        "a head that leaves tells nobody",
        "P2",
        guarding_without(CHAIN, "who_leaves_lets_others_go_on"),
        "P2: gate 0 had room for two seconds",
        ("is held", "is cancelled"),
        quick=True,
    ),
)
