"""The design without one of its rules about scan, memory and broker."""

from __future__ import annotations

from dataclasses import replace

from dev.verification.dispatch_world import DispatchSetup
from dev.verification.trial import Mutant, dispatching_without

LATE = DispatchSetup(("commits late", "plain"))
BETWEEN = replace(LATE, passes_in_between=True)
NEAR_THE_END = replace(LATE, passes_near_the_end=True)
UNKNOWN = DispatchSetup(("unknown", "plain"), ids_per_message=1)
TWO = DispatchSetup(("plain", "plain"), ids_per_message=1)
NOBODY = replace(TWO, faults={"workers leave": 1})
TWICE = replace(TWO, faults={"duplicate": 1})
DEAF = replace(TWO, faults={"workers go deaf": 1})
RETRY = DispatchSetup(("raises once",), memory_lasts=True)
DOUBT = replace(RETRY, faults={"publish in doubt": 1})
CUT_OFF = replace(RETRY, scanners=2, faults={"cut off": 1})


def mutant(
    name: str, hole: str, setup: DispatchSetup, rule: str, complaint: str, *way: str
) -> Mutant:
    return Mutant(name, hole, dispatching_without(setup, rule), complaint, way, quick=True)


# fmt: off
DISPATCHES = (
    mutant("a watermark instead of full passes", "P2",
        BETWEEN, "whole_passes_begin_at_the_front",
        "P2: stuck", "finds T1", "T1 is done", "the producer of T0 commits"),
    mutant("whole passes rest for ever", "P2",
        NEAR_THE_END, "whole_passes_come_again",
        "P2: stuck", "T1 is done", "the producer of T0 commits"),
    mutant("unknown handlers are not parked", "P2",
        UNKNOWN, "what_cannot_run_is_parked",
        "P2: stuck"),
    mutant("nobody asks how many messages wait", "H12",
        TWO, "depth_is_asked",
        "H12: the broker holds 2 messages", "publishes T0", "publishes T1"),
    mutant("messages are published though no worker lives", "H12",
        NOBODY, "nothing_without_a_live_worker",
        "H12: a message is made for nobody", "all workers vanish", "finds T0"),
    mutant("a leader that cannot publish keeps the lead", "H13",
        CUT_OFF, "leader_that_cannot_publish_resigns",
        "P2: stuck", "takes the lead", "cut off", "cannot publish"),
    mutant("the leader remembers for ever", "P2",
        TWO, "memory_fades",
        "P2: stuck", "publishes T0", "the broker loses"),
    mutant("the leader remembers what the broker refused", "P2",
        DOUBT, "refused_is_forgotten",
        "P2: stuck", "gets no answer (it did not)"),
    mutant("the leader remembers ids whose scan_at has moved", "H11",
        RETRY, "memory_knows_scan_at",
        "P2: stuck", "publishes T0", "T0 raises", "T0 is due again"),
    mutant("a claim without compare-and-set", "P2",
        TWICE, "claims_compare_and_set",
        "P2: T0 was done and is running", "claims T0", "is done", "claims T0"),
    mutant("a deaf worker is left alone", "P2",
        DEAF, "deaf_consumers_are_restarted",
        "P2: stuck", "hear nothing"),
)
