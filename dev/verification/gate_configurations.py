"""What must hold of order keys and limits: tasks, gates, faults."""

from __future__ import annotations

from dev.verification.gate_world import GateSetup, Kind
from dev.verification.trial import Configuration

PLAIN = Kind()
PAUSED = Kind(bar="stands still", may=("stand still",))
NO_HANDS = Kind(bar="nobody has a hand free")
EXPIRES = Kind(may=("expire",))
BOTH = Kind(gates=(0, 1))
OTHER = Kind(gates=(1,))

GATES = (
    Configuration(
        "a limit, queues that stand still",
        GateSetup((Kind(may=("stand still",)), PAUSED, PAUSED, PLAIN), faults={"pause": 1}),
        quick=True,
    ),
    Configuration(
        "a limit, tasks that expire, a child dies before its word",
        GateSetup((PLAIN, EXPIRES, EXPIRES, PLAIN), faults={"child crash": 1}),
        quick=True,
    ),
    Configuration(
        "a limit, nobody has a hand free for one",
        GateSetup((PLAIN, NO_HANDS, PLAIN, EXPIRES), faults={"child crash": 1}),
    ),
    Configuration(
        "an order key, retries, expiry and cancels",
        GateSetup(
            (Kind(may=("expire", "be cancelled")), EXPIRES, PLAIN),
            ordered=frozenset({0}),
            faults={"raise": 2},
        ),
        quick=True,
    ),
    Configuration(
        "an order key, queues that stand still, a child dies before its word",
        GateSetup(
            (Kind(may=("stand still", "be cancelled")), PAUSED, PLAIN, PLAIN),
            ordered=frozenset({0}),
            faults={"raise": 1, "pause": 1, "child crash": 1},
        ),
    ),
    Configuration(
        "an order key and a limit",
        GateSetup((BOTH, OTHER, BOTH, PLAIN), ordered=frozenset({0}), faults={"raise": 1}),
        quick=True,
    ),
    Configuration(
        "two limits, queues that stand still",
        GateSetup((BOTH, OTHER, PAUSED, BOTH), faults={"pause": 1}),
    ),
)
