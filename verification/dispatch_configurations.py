"""What must hold of scan, memory and broker: tasks, scanners, faults."""

from __future__ import annotations

from verification.dispatch_world import DispatchSetup
from verification.trial import Configuration

DISPATCHES = (
    Configuration(
        "two scanners, one dies; a late commit",
        DispatchSetup(
            ("commits late", "raises once"),
            scanners=2,
            room=2,
            ids_per_message=1,
            faults={"scanner crash": 1, "leadership lapses": 1},
        ),
        quick=True,
    ),
    Configuration(
        "repeated messages, child crash",
        DispatchSetup(
            ("raises once", "plain"),
            children=2,
            room=2,
            faults={"duplicate": 1, "child crash": 1},
        ),
        quick=True,
    ),
    Configuration(
        "publishes without an answer",
        DispatchSetup(("commits late", "raises once"), scanners=2, faults={"publish in doubt": 2}),
        quick=True,
    ),
    Configuration(
        "the broker dies empty; hint and repetition",
        DispatchSetup(
            ("commits late", "raises once"),
            children=2,
            faults={"hint": 1, "duplicate": 1, "broker down": 1},
        ),
    ),
    Configuration(
        "a weekend without workers",
        DispatchSetup(
            ("plain", "plain", "plain"),
            ids_per_message=1,
            room=2,
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
        "the rest of a long task's message is given back; child crash",
        DispatchSetup(
            ("long", "plain", "raises once"),
            children=2,
            ids_per_message=3,
            faults={"child crash": 1},
        ),
    ),
    Configuration(
        "no waiting: a scanner is cut off, a publish is in doubt",
        DispatchSetup(
            ("plain", "raises once"),
            scanners=2,
            faults={"cut off": 1, "publish in doubt": 1, "leadership lapses": 1},
            memory_lasts=True,
        ),
        quick=True,
    ),
    Configuration(
        "a hint is lost, a child dies",
        DispatchSetup(("hinted", "plain"), children=2, faults={"hint": 1, "child crash": 1}),
        quick=True,
    ),
    Configuration(
        "the workers go deaf",
        DispatchSetup(
            ("plain", "raises once"),
            children=2,
            faults={"workers go deaf": 2, "child crash": 1},
        ),
    ),
    Configuration(
        "passes in between go on at the bookmark; a late commit",
        DispatchSetup(
            ("commits late", "raises once", "plain"),
            scanners=2,
            ids_per_message=1,
            passes_in_between=True,
            faults={"leadership lapses": 1},
        ),
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
        DispatchSetup(
            ("commits late", "raises once"),
            scanners=2,
            room=2,
            passes_near_the_end=True,
            faults={"leadership lapses": 1},
        ),
    ),
)
