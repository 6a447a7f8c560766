"""What must hold of scan, memory and broker: tasks, scanners, faults."""

from __future__ import annotations

from dataclasses import replace

from dev.verification.dispatch_world import DispatchSetup
from dev.verification.trial import Configuration

LATE = DispatchSetup(("commits late", "raises once"), scanners=2, ids_per_message=1)
TWO_CHILDREN = DispatchSetup(("raises once", "plain"), children=2)

DISPATCHES = (
    Configuration(
        "two scanners, one dies; a late commit",
        replace(LATE, room=2, faults={"scanner crash": 1, "leadership lapses": 1}),
        quick=True,
    ),
    Configuration(
        "repeated messages, child crash",
        replace(TWO_CHILDREN, room=2, faults={"duplicate": 1, "child crash": 1}),
    ),
    Configuration(
        "publishes without an answer",
        replace(LATE, faults={"publish in doubt": 2}),
        quick=True,
    ),
    Configuration(
        "the broker dies empty; hint and repetition",
        replace(LATE, scanners=1, room=2, faults={"hint": 1, "duplicate": 1, "broker down": 1}),
    ),
    Configuration(
        "a weekend without workers",
        DispatchSetup(
            ("plain", "plain", "plain"),
            room=2,
            ids_per_message=1,
            faults={"workers leave": 1, "scanner crash": 1},
        ),
        quick=True,
    ),
    Configuration(
        "unknown and early tasks at the head",
        DispatchSetup(("unknown", "early", "plain"), ids_per_message=1, faults={"child crash": 1}),
        quick=True,
    ),
    Configuration(
        "a long task, and what is given back behind it; child crash",
        replace(TWO_CHILDREN, kinds=("long", "raises once"), faults={"child crash": 1}),
        quick=True,
    ),
    Configuration(
        "no waiting: a scanner is cut off, a publish is in doubt",
        replace(
            LATE,
            ids_per_message=2,
            faults={"cut off": 1, "publish in doubt": 1, "leadership lapses": 1},
            memory_lasts=True,
        ),
        quick=True,
    ),
    Configuration(
        "a hint is lost, a child dies",
        replace(TWO_CHILDREN, kinds=("plain", "plain"), faults={"hint": 1, "child crash": 1}),
    ),
    Configuration(
        "the workers go deaf",
        replace(TWO_CHILDREN, faults={"workers go deaf": 2, "child crash": 1}),
    ),
    Configuration(
        "passes in between go on at the bookmark; a late commit",
        replace(LATE, room=2, passes_in_between=True, faults={"leadership lapses": 1}),
    ),
    Configuration(
        "passes near the end, a late commit, a crash",
        DispatchSetup(
            ("commits late", "plain", "raises once"),
            ids_per_message=1,
            passes_near_the_end=True,
            faults={"child crash": 1},
        ),
        quick=True,
    ),
    Configuration(
        "passes near the end of two scanners, a late commit",
        replace(LATE, room=2, passes_near_the_end=True, faults={"leadership lapses": 1}),
    ),
)
