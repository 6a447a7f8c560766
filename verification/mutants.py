"""The design with one rule left out. Every mutant must be caught, and for the right reason.

A mutant names the complaint that it must provoke and some words of the way there, in their
order; a checker that complains of something else has found another hole, not this one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from verification.configurations import (
    ASYNC,
    ASYNC_KILLER,
    BATCH,
    DISABLED,
    EXPIRES,
    HANGS,
    KILLER,
    KILLER_AT_FETCH,
    KILLER_OF_WORKERS,
    LATER,
    MAILS,
    ONCE,
    ONCE_WRITES,
    ONE_CHILD_EACH,
    WRITES,
    WRITES_OR_RAISES,
)
from verification.dispatch_world import DispatchSetup
from verification.rows import MAX_ATTEMPTS, MAX_CRASHES
from verification.rules import RunRules
from verification.world import RunSetup


@dataclass(frozen=True, slots=True)
class Mutant:
    """A setup that must fail."""

    name: str
    hole: str
    """The hole of the protocol, or the promise, that the missing rule protects."""
    setup: RunSetup | DispatchSetup
    complaint: str
    way: tuple[str, ...]
    quick: bool = False


LAPSE = RunSetup((WRITES, WRITES_OR_RAISES), ONE_CHILD_EACH, faults={"lease lapses": 1})
CHARGED_ONCE = RunSetup(
    (WRITES, MAILS),
    faults={"child crash": 1},
    charges_are_deaths=True,
    dead_leave_no_statements=True,
)
QUIET = RunSetup((MAILS, WRITES), innocent=(0, 1), leases_never_lapse=True)
LOST_REPLY = replace(QUIET, faults={"settle reply lost": 1})
NEIGHBOUR = RunSetup((MAILS, KILLER), innocent=(0,), most_runs=MAX_ATTEMPTS)
HELD_ROW = replace(NEIGHBOUR, faults={"row held": 1})
FETCH = RunSetup((KILLER_AT_FETCH, WRITES), most_runs=MAX_CRASHES)
MACHINES = RunSetup(
    (KILLER_OF_WORKERS, WRITES),
    ONE_CHILD_EACH,
    innocent=(1,),
    innocent_crashes=1,
    most_runs=MAX_CRASHES,
)
OPERATOR = RunSetup((WRITES, WRITES_OR_RAISES), faults={"cancel": 1})
ONCE_LOST = RunSetup((ONCE, MAILS), faults={"child crash": 1, "settle reply lost": 1})


def without(setup: RunSetup, *rules: str) -> RunSetup:
    """The same configuration with some rules left out."""
    return replace(setup, rules=replace(setup.rules, **switched_off(rules)))


def dispatching_without(setup: DispatchSetup, *rules: str) -> DispatchSetup:
    """The same, for the other model."""
    return replace(setup, rules=replace(setup.rules, **switched_off(rules)))


def switched_off(rules: tuple[str, ...]) -> dict[str, Any]:
    """Every one of these rules is False."""
    return dict.fromkeys(rules, False)


RUN_MUTANTS = (
    Mutant(
        "settle by id only",
        "P6",
        replace(LAPSE, rules=RunRules(fence="id")),
        "P6: settle (",
        ("lapses", "is rescued"),
    ),
    Mutant(
        "settle by state only",
        "P6",
        replace(LAPSE, rules=RunRules(fence="state")),
        "P6: settle (",
        ("lapses", "is rescued", "claims T"),
        quick=True,
    ),
    Mutant(
        "the fence is the attempt, without the token",
        "P6",
        RunSetup(
            (MAILS,),
            ONE_CHILD_EACH,
            faults={"failover": 1},
            counts_attempts=True,
            rules=RunRules(fence="attempt"),
        ),
        "P6: settle (ok) of T0 by one that lost its claim",
        ("claims T0", "forgotten", "claims T0", "flushes T0"),
        quick=True,
    ),
    Mutant(
        "no rescuer",
        "P2",
        without(
            replace(LAPSE, faults={"worker crash": 1}),
            "expired_leases_are_rescued",
        ),
        "P2: stuck",
        ("claims T", "vanishes whole"),
        quick=True,
    ),
    Mutant(
        "rescue in two steps",
        "P6",
        without(LAPSE, "rescue_rechecks_the_lease"),
        "P6: rescue of T",
        ("the rescuer reads T", "by its id"),
    ),
    Mutant(
        "a burial charges the neighbours",
        "P3",
        without(NEIGHBOUR, "burial_charges_only_the_running"),
        "P3: an innocent neighbour was charged a failure (T0)",
        ("T1 kills c0", "releases the other rows"),
    ),
    Mutant(
        "a burial leaves the neighbours to the lease",
        "P3",
        without(NEIGHBOUR, "burial_releases_the_others"),
        "P3: 1 crashes were counted on an innocent neighbour (T0)",
        ("T1 kills c0", "releases the other", "the lease of T0 lapses", "T0 is rescued"),
    ),
    Mutant(
        "the slot still names what is over and collected",
        "P3",
        without(NEIGHBOUR, "running_id_is_cleared_when_collected"),
        "P3: an innocent neighbour was charged a failure (T0)",
        ("T0 is over in c0", "T1 kills c0", "charges what owner"),
    ),
    Mutant(
        "two buriers, and no fence at the charge",
        "P3",
        without(CHARGED_ONCE, "burial_charges_under_the_fence"),
        "P3: 2 failures were charged for 1 deaths",
        ("is killed", "reads the slot", "charges what", "claims T", "charges what"),
        quick=True,
    ),
    Mutant(
        "the slot holds the running id, not its token",
        "P3",
        without(
            RunSetup(
                (WRITES,),
                faults={"child crash": 1, "claim comes late": 1},
                charges_are_deaths=True,
                dead_leave_no_statements=True,
            ),
            "slot_knows_the_running_token",
        ),
        "P3: 2 failures were charged for 1 deaths",
        ("under way", "claims T0", "is killed", "charges what", "a late claim", "charges what"),
    ),
    Mutant(
        "a burial charges before it releases",
        "P3",
        without(HELD_ROW, "burial_releases_before_it_charges"),
        "P3: 1 crashes were counted on an innocent neighbour (T0)",
        ("gets T0 T1", "T1 kills c0", "locks T1", "the lease of T0 lapses", "T0 is rescued"),
    ),
    Mutant(
        "the clerk waits for the lock of the one it charges",
        "P3",
        without(HELD_ROW, "burial_never_blocks_the_clerk"),
        "P3: 1 crashes were counted on an innocent neighbour (T0)",
        ("T1 kills", "reads the slot", "locks T1", "the lease of T0 lapses", "T0 is rescued"),
        quick=True,
    ),
    Mutant(
        "a living child is buried",
        "P3",
        without(replace(CHARGED_ONCE, faults={"hasty burial": 1}), "only_the_dead_are_buried"),
        "P3: 1 failures were charged for 0 deaths",
        ("lives, yet", "charges what"),
    ),
    Mutant(
        "the running id is written after decoding",
        "H5",
        without(NEIGHBOUR, "running_id_comes_before_decoding"),
        "P3: 1 crashes were counted on an innocent neighbour (T0)",
        ("T1 kills c0", "ran nothing", "charges what"),
    ),
    Mutant(
        "a death without a running id counts nothing",
        "H5",
        without(FETCH, "no_running_id_counts_a_crash"),
        f"P3: a task that kills was started {MAX_CRASHES + 1} times",
        ("before any running id",) * (MAX_CRASHES + 1),
        quick=True,
    ),
    Mutant(
        "no max_crashes",
        "P3",
        without(MACHINES, "crashes_are_bounded"),
        f"P3: a task that kills was started {MAX_CRASHES + 1} times",
        ("T0 kills the whole worker", "T0 is rescued") * MAX_CRASHES,
    ),
    Mutant(
        "alone only from the second crash on",
        "H7",
        without(MACHINES, "once_crashed_is_claimed_alone"),
        "P3: 2 crashes were counted on an innocent neighbour (T1)",
        ("gets T0 T1", "kills the whole worker", "gets T0 T1", "kills the whole worker"),
    ),
    Mutant(
        "alone in the claim, but not in the child",
        "H7",
        without(
            RunSetup((ASYNC_KILLER, ASYNC), innocent=(1,), innocent_crashes=1),
            "alone_means_alone_in_the_child",
        ),
        "P3: 2 crashes were counted on an innocent neighbour (T1)",
        ("T0 kills c", "charges what", "T0 kills c", "charges what"),
    ),
    Mutant(
        "at_most_once claimed in a group",
        "P5",
        without(
            RunSetup((KILLER_OF_WORKERS, ONCE), ONE_CHILD_EACH, innocent=(1,)),
            "at_most_once_is_claimed_alone",
        ),
        "P3: an innocent neighbour ended in the error pool (T1)",
        ("gets T0 T1", "kills the whole worker", "T1 is rescued"),
    ),
    Mutant(
        "at_most_once outcomes are collected",
        "H4",
        without(ONCE_LOST, "at_most_once_is_settled_at_once"),
        "P5: an at_most_once task was started twice (T0)",
        ("starts T0", "is collected", "is killed", "ran nothing", "starts T0"),
    ),
    Mutant(
        "the running id goes before the settle is answered",
        "H4",
        without(ONCE_LOST, "running_id_stays_until_answered"),
        "P5: an at_most_once task was started twice (T0)",
        ("has no answer", "is killed", "ran nothing", "starts T0"),
    ),
    Mutant(
        "at_most_once released after a failed COMMIT",
        "P5",
        without(
            RunSetup((ONCE_WRITES,), faults={"settle reply lost": 1}),
            "failed_commit_of_at_most_once_is_an_error",
        ),
        "P5: an at_most_once task was started twice (T0)",
        ("was not applied", "releases T0", "starts T0"),
        quick=True,
    ),
    Mutant(
        "settled again after a failed ctx.session COMMIT",
        "H6",
        without(RunSetup((WRITES,), faults={"settle reply lost": 1}), "failed_commit_is_released"),
        "P4: SUCCEEDED with 0 committed effects (T0)",
        ("settles T0 again",),
        quick=True,
    ),
    Mutant(
        "effects committed apart from the outcome",
        "P4",
        without(LAPSE, "effect_and_outcome_are_one_commit"),
        "P4: RUNNING with 1 committed effects",
        ("commits the effects of T",),
    ),
    Mutant(
        "a batch commits though it lost a member",
        "P4",
        without(
            RunSetup((BATCH, BATCH), faults={"lease lapses": 1}), "batch_commits_all_or_nothing"
        ),
        "P4: PENDING with 1 committed effects",
        ("lapses", "is rescued", "commits its batch"),
    ),
    Mutant(
        "the clerk renews only its newest claim",
        "H1",
        without(QUIET, "clerk_renews_every_held_claim"),
        "P3: 1 crashes were counted on an innocent neighbour (T0)",
        ("is collected", "the lease of T0 lapses", "T0 is rescued"),
        quick=True,
    ),
    Mutant(
        "the clerk renews what was sent, not what is held",
        "H2",
        without(
            RunSetup((WRITES,), faults={"claim comes late": 1}),
            "clerk_renews_only_held_claims",
        ),
        "P2: stuck",
        ("under way", "releases T0", "a late claim of owner"),
        quick=True,
    ),
    Mutant(
        "the clerk renews all rows of its owner",
        "H2",
        without(RunSetup((WRITES,), faults={"claim comes late": 1}), "clerk_renews_by_token"),
        "P2: stuck",
        ("under way", "a late claim of owner"),
    ),
    Mutant(
        "an ambiguous claim is left to the lease",
        "H2",
        without(replace(QUIET, faults={"claim reply lost": 1}), "ambiguous_claim_is_released"),
        "P3: 1 crashes were counted on an innocent neighbour",
        ("the reply is lost", "lapses", "is rescued"),
    ),
    Mutant(
        "a claim may wait for its reply for ever",
        "P2",
        without(
            RunSetup((WRITES,), workers=(0,), faults={"claim reply never comes": 1}),
            "claims_have_a_time_limit",
        ),
        "P2: stuck",
        ("waits for the reply for ever", "lapses", "is rescued"),
        quick=True,
    ),
    Mutant(
        "give-back without the mutex",
        "P6",
        without(QUIET, "give_back_under_the_mutex"),
        "P6: T1 starts without its claim, though no lease lapsed",
        ("takes back T1", "releases T1"),
    ),
    Mutant(
        "a give-back is not retried",
        "P3",
        without(LOST_REPLY, "releases_are_retried"),
        "P3: 1 crashes were counted on an innocent neighbour",
        ("takes back T", "never arrives", "lapses", "is rescued"),
    ),
    Mutant(
        "a flush is not retried",
        "P3",
        without(LOST_REPLY, "collected_settles_are_retried"),
        "P3: 1 crashes were counted on an innocent neighbour (T0)",
        ("flushes T0 (ok), never arrives", "lapses", "is rescued"),
    ),
    Mutant(
        "the claim does not look at the state again",
        "P5",
        without(RunSetup((ONCE,)), "claim_rechecks_the_state"),
        "P5: an at_most_once task was started twice (T0)",
        ("c0 claims T0", "c1 claims T0"),
        quick=True,
    ),
    Mutant(
        "the claim takes disabled tasks",
        "H14",
        without(RunSetup((DISABLED,)), "claim_asks_enabled_and_expiry"),
        "H14: a disabled task was claimed",
        ("claims T0",),
    ),
    Mutant(
        "the claim takes expired tasks",
        "H14",
        without(RunSetup((EXPIRES,)), "claim_asks_enabled_and_expiry"),
        "H14: an expired task was claimed",
        ("T0 expires", "claims T0"),
    ),
    Mutant(
        "the claim does not ask due_at",
        "H14",
        without(RunSetup((LATER,)), "claim_asks_due_at"),
        "H14: a task was claimed before it was due",
        ("claims T0",),
    ),
    Mutant(
        "a cancelled task comes back",
        "H3",
        without(OPERATOR, "cancel_wins_over_coming_back"),
        "P2: cancelled while running, yet pending again",
        ("told to cancel",),
        quick=True,
    ),
    Mutant(
        "cancel in one clever statement",
        "H8",
        without(OPERATOR, "cancel_locks_then_looks"),
        "P6: cancel of T0: nothing moved, nothing told",
        ("takes its snapshot (PENDING)", "claims T0", "acts on what it saw"),
        quick=True,
    ),
    Mutant(
        "no hard limit",
        "P2",
        without(RunSetup((HANGS,)), "parent_kills_past_the_hard_limit"),
        "P2: stuck",
        (),
    ),
)

ONE_SCANNER = DispatchSetup(("commits late", "plain"), faults={"child crash": 1})
NO_WAITING = DispatchSetup(
    ("raises once", "long"), children=2, ledger_room=2, ledger_clock_runs=False
)
ONE_ROOM = DispatchSetup(("plain", "plain"), ids_per_message=1)
CUT_OFF = DispatchSetup(
    ("plain", "plain"), scanners=2, faults={"cut off": 1}, ledger_clock_runs=False
)

DISPATCH_MUTANTS = (
    Mutant(
        "a permanent published mark",
        "P2",
        dispatching_without(ONE_SCANNER, "no_published_mark"),
        "P2: stuck",
        ("writes a ledger row for T1", "is killed", "buries", "T0 is done"),
        quick=True,
    ),
    Mutant(
        "a watermark instead of full passes",
        "P2",
        dispatching_without(ONE_SCANNER, "every_pass_is_full"),
        "P2: stuck",
        ("writes a ledger row for T1", "T1 is done", "the producer of T0 commits"),
        quick=True,
    ),
    Mutant(
        "ledger rows never expire",
        "P2",
        dispatching_without(ONE_SCANNER, "overdue_messages_are_published_again"),
        "P2: stuck",
        ("publishes T", "the broker loses"),
        quick=True,
    ),
    Mutant(
        "finished messages stay in the ledger",
        "P2",
        dispatching_without(ONE_ROOM, "finished_messages_leave_the_ledger"),
        "P2: stuck",
        (),
    ),
    Mutant(
        "the ledger hides what was rescheduled after it",
        "H11",
        dispatching_without(NO_WAITING, "ledger_hides_only_what_it_saw"),
        "P2: stuck",
        ("T0 raises", "claims T1"),
        quick=True,
    ),
    Mutant(
        "the ledger is dated by its INSERT",
        "H11",
        dispatching_without(replace(NO_WAITING, faults={"hint": 1}), "ledger_is_dated_by_its_scan"),
        "P2: stuck",
        ("finds T0 T1 due", "T0 raises", "writes a ledger row for T0 T1", "claims T1"),
    ),
    Mutant(
        "a publish in doubt takes its ledger row back",
        "H12",
        dispatching_without(
            replace(ONE_ROOM, faults={"publish in doubt": 1}),
            "doubtful_messages_keep_their_rows",
        ),
        "H12: the broker holds 2 messages",
        ("gets no answer (it arrived)", "publishes T0"),
        quick=True,
    ),
    Mutant(
        "a burial leaves the dead one's message in the ledger",
        "P3",
        dispatching_without(
            replace(ONE_ROOM, faults={"child crash": 1}, ledger_clock_runs=False),
            "burials_clear_the_ledger",
        ),
        "P2: stuck",
        ("is killed", "buries"),
    ),
    Mutant(
        "what is given back stays hidden",
        "P2",
        dispatching_without(
            replace(NO_WAITING, kinds=("long", "plain")), "giving_back_clears_the_ledger"
        ),
        "P2: stuck",
        ("claims T0", "gives back"),
    ),
    Mutant(
        "a scanner that cannot publish keeps the ledger's room",
        "H13",
        dispatching_without(CUT_OFF, "unpublished_rows_are_taken_back"),
        "P2: stuck",
        ("cut off", "cannot publish"),
        quick=True,
    ),
    Mutant(
        "a leader that cannot publish keeps the lead",
        "H13",
        dispatching_without(CUT_OFF, "leader_that_cannot_publish_resigns"),
        "P2: stuck",
        ("takes the lead", "cut off"),
    ),
    Mutant(
        "overdue messages are published though no worker lives",
        "H12",
        dispatching_without(
            replace(ONE_ROOM, faults={"workers leave": 1}), "nothing_without_a_live_worker"
        ),
        "H12: the broker holds 2 messages",
        ("all workers vanish", "again, under the same id"),
    ),
    Mutant(
        "the ledger has no bound",
        "H12",
        dispatching_without(ONE_ROOM, "ledger_is_bounded"),
        "H12: the broker holds 2 messages",
        ("publishes T0", "publishes T1"),
    ),
    Mutant(
        "unknown handlers are not parked",
        "P2",
        dispatching_without(
            DispatchSetup(("unknown", "plain"), ids_per_message=1), "what_cannot_run_is_parked"
        ),
        "P2: stuck",
        (),
    ),
    Mutant(
        "scan_at before due_at",
        "H14",
        dispatching_without(
            DispatchSetup(("early", "plain"), ids_per_message=1),
            "scan_at_is_never_before_due_at",
        ),
        "P2: stuck",
        (),
    ),
    Mutant(
        "a claim without compare-and-set",
        "P2",
        dispatching_without(replace(ONE_ROOM, faults={"duplicate": 1}), "claims_compare_and_set"),
        "P2: T0 was done and is running",
        ("repeats", "is done", "claims T0"),
    ),
)

ALL = (*RUN_MUTANTS, *DISPATCH_MUTANTS)
