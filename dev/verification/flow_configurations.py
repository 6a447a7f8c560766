"""Flows that must hold, and the design of flows without one of its rules."""

from __future__ import annotations

from dataclasses import replace

from dev.verification.flow_model import After, FlowSetup
from dev.verification.trial import Configuration, Mutant, switched_off

Needs = dict[int, After]
DIAMOND: tuple[Needs, ...] = ({}, {0: "success"}, {0: "success"}, {1: "success", 2: "success"})
SORRY: tuple[Needs, ...] = ({}, {0: "success"}, {1: "failure"}, {2: "success", 0: "success"})
EITHER: tuple[Needs, ...] = ({}, {}, {0: "end", 1: "success"}, {2: "failure"})
MISHAPS = {"fail": 2, "cancel": 1, "requeue": 2, "lease": 1}

FLOWS = (
    Configuration(
        "a diamond, a mishap of each kind",
        FlowSetup(DIAMOND, dict.fromkeys(MISHAPS, 1)),
        quick=True,
    ),
    Configuration("a diamond, everything may happen", FlowSetup(DIAMOND, MISHAPS)),
    Configuration("a branch for a failure", FlowSetup(SORRY, MISHAPS)),
    Configuration("needs of any end", FlowSetup(EITHER, MISHAPS)),
)


def _without(rule: str, needs: tuple[Needs, ...] = DIAMOND, **faults: int) -> FlowSetup:
    setup = FlowSetup(needs, faults)
    return replace(setup, rules=replace(setup.rules, **switched_off((rule,))))


MUTANTS = (
    Mutant(
        "a release after the commit of the end",
        "F2",
        _without("release_and_end_are_one_commit", crash=1),
        "F2: the needs of",
        ("ends in success", "the worker dies before it releases"),
        quick=True,
    ),
    Mutant(
        "needs counted from what the statement saw",
        "F2",
        _without("counts_are_read_under_the_lock"),
        "F2: the needs of S3 are met, and it waits",
        ("about to succeed", "about to succeed", "ends", "ends"),
        quick=True,
    ),
    Mutant(
        "a requeue that does not take the end back",
        "F1",
        _without("requeues_take_the_end_back", requeue=1),
        "F1: S3 is due before its needs are met",
        ("is requeued", "ends in success"),
        quick=True,
    ),
    Mutant(
        "a requeued step that does not wait for its needs",
        "F1",
        _without("who_is_requeued_waits_for_its_needs", cancel=1),
        "F1: S",
        ("is cancelled", "is requeued"),
        quick=True,
    ),
    Mutant(
        "a late end that counts",
        "F1",
        _without("late_ends_are_refused", lease=1),
        "F1: S",
        ("loses its lease", "a late end"),
        quick=True,
    ),
    Mutant(
        "what can never start waits for ever",
        "F2",
        _without("what_can_never_start_is_skipped", SORRY),
        "F2: the needs of S2 are met, and it waits",
        ("S1 ends in success",),
        quick=True,
    ),
)
