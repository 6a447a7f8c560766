"""The design without one of its rules about claim, settle, housekeeper and operators."""

from __future__ import annotations

from dataclasses import replace

from dev.verification.kinds import (
    DISABLED,
    EXPIRES,
    LATER,
    MAILS,
    ONCE,
    ONCE_WRITES,
    ONE_CHILD_EACH,
    WRITES,
    WRITES_OR_RAISES,
)
from dev.verification.rules import RunRules
from dev.verification.trial import Mutant, without
from dev.verification.world import RunSetup

LAPSE = RunSetup((WRITES, WRITES_OR_RAISES), ONE_CHILD_EACH, faults={"lease lapses": 1})
QUIET = RunSetup((MAILS, WRITES), innocent=(0, 1), leases_never_lapse=True)
LOST_REPLY = replace(QUIET, faults={"settle reply lost": 1})
OPERATOR = RunSetup((WRITES, WRITES_OR_RAISES), faults={"cancel": 1})
ONCE_LOST = RunSetup((ONCE, MAILS), faults={"child crash": 1, "settle reply lost": 1})

RUNS = (
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
        "at_most_once outcomes are collected",
        "H4",
        without(ONCE_LOST, "at_most_once_is_settled_at_once"),
        "P5: an at_most_once task was started twice (T0)",
        ("starts T0", "is collected", "is killed", "ran nothing", "starts T0"),
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
        "the housekeeper renews only its newest claim",
        "H1",
        without(QUIET, "housekeeper_renews_every_held_claim"),
        "P3: 1 crashes were counted on an innocent neighbour (T0)",
        ("is collected", "the lease of T0 lapses", "T0 is rescued"),
        quick=True,
    ),
    Mutant(
        "the housekeeper renews what was sent, not what is held",
        "H2",
        without(
            RunSetup((WRITES,), faults={"claim comes late": 1}),
            "housekeeper_renews_only_held_claims",
        ),
        "P2: stuck",
        ("under way", "releases T0", "a late claim of owner"),
        quick=True,
    ),
    Mutant(
        "the housekeeper renews all rows of its owner",
        "H2",
        without(RunSetup((WRITES,), faults={"claim comes late": 1}), "housekeeper_renews_by_token"),
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
        "a give-back forgets what it had to skip",
        "P3",
        without(replace(QUIET, faults={"row held": 1}), "skipped_releases_are_retried"),
        "P3: 1 crashes were counted on an innocent neighbour",
        ("takes back T", "locked and skipped", "lapses", "is rescued"),
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
        "P2: cancel of T0: nothing moved, nothing told",
        ("takes its snapshot (PENDING)", "claims T0", "acts on what it saw"),
        quick=True,
    ),
)
