"""Flows that must hold, and the design of flows without one of its rules."""

from __future__ import annotations

from dataclasses import replace

from dev.verification.flow_world import After, FlowSetup
from dev.verification.trial import Configuration, Mutant, switched_off

Needs = dict[int, After]
DIAMOND: tuple[Needs, ...] = ({}, {0: "success"}, {0: "success"}, {1: "success", 2: "success"})
SORRY: tuple[Needs, ...] = ({}, {0: "success"}, {1: "failure"}, {2: "success", 0: "success"})
EITHER: tuple[Needs, ...] = ({}, {}, {0: "end", 1: "success"}, {2: "failure"})
CHAIN: tuple[Needs, ...] = ({}, {0: "success"})
FORK: tuple[Needs, ...] = ({}, {}, {0: "success", 1: "end"})
MISHAPS = {"fail": 2, "cancel": 1, "requeue": 2, "lease": 1}


def _once(*faults: str) -> dict[str, int]:
    return dict.fromkeys(faults, 1)


FLOWS = (
    Configuration(
        "a diamond, a mishap of each kind",
        FlowSetup(DIAMOND, _once(*MISHAPS)),
        quick=True,
    ),
    Configuration("a diamond, everything may happen", FlowSetup(DIAMOND, MISHAPS)),
    Configuration("a branch for a failure", FlowSetup(SORRY, MISHAPS)),
    Configuration("needs of any end", FlowSetup(EITHER, MISHAPS)),
    Configuration(
        "a flow that is created while its event is sent twice",
        FlowSetup(
            FORK, _once("cancel", "requeue", "rollback"), {2: "counted"}, senders=2, is_there=False
        ),
        quick=True,
    ),
    Configuration(
        "an event with a time-out",
        FlowSetup(
            CHAIN,
            _once("cancel", "requeue", "lease", "rerun", "rollback"),
            {1: "dated"},
            senders=2,
            is_there=False,
        ),
        quick=True,
    ),
    Configuration(
        "a run that goes back until its needs are met",
        FlowSetup(FORK, _once("requeue", "lease", "rollback"), go_back=(2,)),
        quick=True,
    ),
    Configuration(
        "a diamond that runs again",
        FlowSetup(DIAMOND, _once("fail", "requeue", "rerun", "rollback")),
        quick=True,
    ),
    Configuration(
        "a branch that runs again, with an event, a time-out and a run that goes back",
        FlowSetup(
            SORRY,
            _once("fail", "rerun", "rollback"),
            {1: "counted", 3: "dated"},
            senders=1,
            go_back=(3,),
        ),
        quick=True,
    ),
)


def _without(rule: str, needs: tuple[Needs, ...] = DIAMOND, **faults: int) -> FlowSetup:
    return _waiting_without(rule, FlowSetup(needs, faults))


def _waiting_without(rule: str, setup: FlowSetup) -> FlowSetup:
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
    Mutant(
        "a wait for an event that has no row",
        "F5",
        _waiting_without(
            "who_waits_enters_the_event",
            FlowSetup(CHAIN, {}, {1: "counted"}, senders=1, is_there=False),
        ),
        "F5: K was sent, and S1 waits",
        ("sees that K is unsent", "sender 0 commits", "the flow is there"),
        quick=True,
    ),
    Mutant(
        "a wait that does not lock its event",
        "F5",
        _waiting_without(
            "who_waits_locks_the_event",
            FlowSetup(CHAIN, {}, {1: "counted"}, senders=1, is_there=False, is_known=True),
        ),
        "F5: K was sent, and S1 waits",
        ("sees that K is unsent", "sender 0 commits", "the flow is there"),
        quick=True,
    ),
    Mutant(
        "an event that is sent without the lock of the flow",
        "F5",
        _waiting_without(
            "senders_lock_the_flow",
            FlowSetup(CHAIN, {"cancel": 1, "rollback": 0}, {1: "counted"}, senders=1),
        ),
        "F5: K was sent, and S1 waits",
        ("S1 is cancelled", "S1 is requeued", "sender 0 commits", "it commits"),
        quick=True,
    ),
    Mutant(
        "an event that leaves the date of a time-out",
        "F5",
        _waiting_without(
            "events_bring_dates_forward", FlowSetup(CHAIN, {}, {1: "dated"}, senders=1)
        ),
        "F5: K was sent, and S1 waits",
        ("S0 ends in success", "sender 0 commits"),
        quick=True,
    ),
    Mutant(
        "an event that counts twice",
        "F3",
        _waiting_without("the_first_event_counts", FlowSetup(FORK, {}, {2: "counted"}, senders=2)),
        "F3: S2 counts more than was met",
        ("sender 0 commits", "sender 1 commits"),
        quick=True,
    ),
    Mutant(
        "a run that goes back and counts what it saw",
        "F2",
        _waiting_without(
            "who_goes_back_counts_under_the_lock", FlowSetup(FORK, {"rollback": 0}, go_back=(2,))
        ),
        "F2: the needs of S2 are met, and it waits",
        ("S2 is about to go back", "ends in success", "S2 goes back", "it commits"),
        quick=True,
    ),
    Mutant(
        "a run that goes back without the lock of the flow",
        "F2",
        _waiting_without(
            "who_goes_back_locks_the_flow", FlowSetup(FORK, {"rollback": 0}, go_back=(2,))
        ),
        "F2: the needs of S2 are met, and it waits",
        ("S2 goes back", "ends in success", "it commits"),
        quick=True,
    ),
    Mutant(
        "a rerun without the lock of the flow",
        "F2",
        _without("reruns_lock_the_flow", FORK, requeue=1, rerun=1, rollback=0),
        "F2: the needs of S2 are met, and it waits",
        ("is requeued", "a rerun from S", "ends in success", "it commits"),
        quick=True,
    ),
    Mutant(
        "a rerun while a step runs",
        "F4",
        _without("reruns_are_refused_while_a_step_runs", CHAIN, rerun=1, rollback=0),
        "F4: S1 has seen the result of S0, which runs again",
        ("S1 starts", "a rerun from S0", "it commits"),
        quick=True,
    ),
)
