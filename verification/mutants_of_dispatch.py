"""The design without one of its rules about scan, memory and broker."""

from __future__ import annotations

from dataclasses import replace

from verification.dispatch_world import DispatchSetup
from verification.trial import Mutant, dispatching_without

LATE = DispatchSetup(("commits late", "plain"))
ONE_BY_ONE = DispatchSetup(("plain", "plain"), ids_per_message=1)
NO_WAITING = DispatchSetup(("raises once",), memory_lasts=True)
CUT_OFF = DispatchSetup(("plain",), scanners=2, faults={"cut off": 1}, memory_lasts=True)

DISPATCHES = (
    Mutant(
        "a watermark instead of full passes",
        "P2",
        dispatching_without(
            replace(LATE, passes_in_between=True), "whole_passes_begin_at_the_front"
        ),
        "P2: stuck",
        ("finds T1", "T1 is done", "the producer of T0 commits"),
        quick=True,
    ),
    Mutant(
        "whole passes rest for ever",
        "P2",
        dispatching_without(replace(LATE, passes_near_the_end=True), "whole_passes_come_again"),
        "P2: stuck",
        ("T1 is done", "the producer of T0 commits"),
        quick=True,
    ),
    Mutant(
        "unknown handlers are not parked",
        "P2",
        dispatching_without(
            DispatchSetup(("unknown", "plain"), ids_per_message=1), "what_cannot_run_is_parked"
        ),
        "P2: stuck",
        (),
        quick=True,
    ),
    Mutant(
        "nobody asks how much waits in the broker",
        "H12",
        dispatching_without(ONE_BY_ONE, "depth_is_asked"),
        "H12: the broker holds 2 messages",
        ("publishes T0", "publishes T1"),
        quick=True,
    ),
    Mutant(
        "messages are published though no worker lives",
        "H12",
        dispatching_without(
            replace(ONE_BY_ONE, faults={"workers leave": 1}), "nothing_without_a_live_worker"
        ),
        "H12: a message is made for nobody",
        ("all workers vanish", "finds T0"),
        quick=True,
    ),
    Mutant(
        "a leader that cannot publish keeps the lead",
        "H13",
        dispatching_without(CUT_OFF, "leader_that_cannot_publish_resigns"),
        "P2: stuck",
        ("takes the lead", "cut off"),
        quick=True,
    ),
    Mutant(
        "the leader remembers for ever",
        "P2",
        dispatching_without(ONE_BY_ONE, "memory_fades"),
        "P2: stuck",
        ("publishes T0", "the broker loses"),
        quick=True,
    ),
    Mutant(
        "the leader remembers what the broker refused",
        "P2",
        dispatching_without(
            replace(NO_WAITING, faults={"publish in doubt": 1}), "refused_is_forgotten"
        ),
        "P2: stuck",
        ("gets no answer (it did not)",),
        quick=True,
    ),
    Mutant(
        "the leader remembers ids whose scan_at has moved",
        "H11",
        dispatching_without(NO_WAITING, "memory_knows_scan_at"),
        "P2: stuck",
        ("publishes T0", "T0 raises", "T0 is due again"),
        quick=True,
    ),
    Mutant(
        "a claim without compare-and-set",
        "P2",
        dispatching_without(replace(ONE_BY_ONE, faults={"duplicate": 1}), "claims_compare_and_set"),
        "P2: T0 was done and is running",
        ("claims T0", "is done", "claims T0"),
        quick=True,
    ),
    Mutant(
        "a deaf worker is left alone",
        "P2",
        dispatching_without(
            replace(ONE_BY_ONE, faults={"workers go deaf": 1}), "deaf_consumers_are_restarted"
        ),
        "P2: stuck",
        ("hear nothing",),
        quick=True,
    ),
    Mutant(
        "rows wait for their hints for ever",
        "P2",
        dispatching_without(
            DispatchSetup(("hinted",), faults={"hint": 1}), "rows_wait_for_hints_a_moment"
        ),
        "P2: stuck",
        (),
        quick=True,
    ),
)
