"""The rules of the walk, each a switch that a mutant can turn off.

A switch that is on is the design. `mutants.py` turns off one at a time and names the promise
that then breaks; a rule whose absence breaks nothing has no business in the design.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Fence = Literal["token", "attempt", "state", "id"]


@dataclass(frozen=True, slots=True)
class RunRules:
    """Rules of claim, child, housekeeper, reaper, rescue and operators."""

    # --- the fence: every write of a run carries (id, attempt, lease_token, RUNNING)
    fence: Fence = "token"
    """Which part of it is compared; "token" is the design, the rest is too little."""

    # --- claim
    claim_rechecks_the_state: bool = True
    """The claim's UPDATE repeats `state = PENDING`; else READ COMMITTED claims twice."""
    claim_asks_enabled_and_expiry: bool = True
    """H14: the claim's predicate is complete."""
    claim_asks_due_at: bool = True
    """H14: a hint or an old message never runs a task before its time."""
    once_crashed_is_claimed_alone: bool = True
    """H7: from the first crash on, not from the second."""
    at_most_once_is_claimed_alone: bool = True
    """P5: a group that dies must not take an at_most_once task with it unseen."""
    alone_means_alone_in_the_child: bool = True
    """H7: an async child tops up, but not with such a task, nor beside one."""
    claims_have_a_time_limit: bool = True
    """P2: a reply that never comes must not cost a child for ever."""
    ambiguous_claim_is_released: bool = True
    """A claim whose reply was lost is given back by its token, until answered."""

    # --- run and settle
    effect_and_outcome_are_one_commit: bool = True
    """P4: ctx.session, the outcome and the move between pools."""
    failed_commit_is_released: bool = True
    """H6: never settled again, for its effects may be gone."""
    failed_commit_of_at_most_once_is_an_error: bool = True
    """P5: but an at_most_once task is not released either: outcome unknown."""
    at_most_once_is_settled_at_once: bool = True
    """H4: never collected, and main waits for the answer."""
    running_id_stays_until_answered: bool = True
    """H4: the slot names an at_most_once task until its settle has been answered."""
    running_id_is_cleared_when_collected: bool = True
    """P3: a collected outcome leaves the slot, so the next one's death is not its fault."""
    running_id_comes_before_decoding: bool = True
    """H5: whose fault a death while decoding was."""
    kept_connections_are_rolled_back: bool = True
    """P4: what a run left open on its connection does not commit with the next one."""
    lost_connection_counts_a_crash: bool = True
    """P3: a task that ends its own connection each time must not come back for ever."""
    outages_acquit: bool = True
    """P3: a run that lost its connection when all were lost is not suspected."""

    # --- housekeeper
    housekeeper_renews_every_held_claim: bool = True
    """H1: not only its newest one."""
    housekeeper_renews_only_held_claims: bool = True
    """H2: a token that was sent, but not answered, must be allowed to expire."""
    housekeeper_renews_by_token: bool = True
    """H2: never "all rows of this owner"."""
    give_back_under_the_mutex: bool = True
    """Main thread and housekeeper agree who owns an unstarted task."""
    releases_are_retried: bool = True
    """A give-back is repeated until it is answered."""
    skipped_releases_are_retried: bool = True
    """P3: a group release skips a locked row; what it skipped is asked for again."""
    collected_settles_are_retried: bool = True
    """A flush is repeated until it is answered."""

    # --- a worker is asked to stop
    leaving_gives_back_the_unstarted: bool = True
    """P3: left to the lease, they would be counted as crashed."""
    leaving_ends_at_most_once_as_unknown: bool = True
    """P5: when the grace is over what runs is let go, but not such a task."""

    # --- parent and reaping
    parent_kills_past_the_hard_limit: bool = True
    """A handler that never returns would be renewed for ever."""
    only_the_dead_are_reaped: bool = True
    """Never before the process is gone."""
    reaper_charges_only_the_running: bool = True
    """P3: the other rows of that owner are released uncharged."""
    reaper_charges_under_the_fence: bool = True
    """P3: two reapers, or one that asks twice, charge once."""
    slot_knows_the_running_token: bool = True
    """P3: id and owner are not enough: a late claim of the dead carries both."""
    no_running_id_counts_a_crash: bool = True
    """H5: else a task that kills before its id is written comes back for ever."""
    reaper_releases_the_others: bool = True
    """P3: left to the lease, the innocent would be counted as crashed."""
    reaper_releases_before_it_charges: bool = True
    """P3: the charge may have to wait for a row lock, the neighbours must not."""
    reaper_never_blocks_the_housekeeper: bool = True
    """P3: a housekeeper that waits for a row lock renews nothing; it asks again later."""

    # --- rescue and operators
    expired_leases_are_rescued: bool = True
    rescue_rechecks_the_lease: bool = True
    """One statement that looks again at write time."""
    rescuers_wait_after_an_outage: bool = True
    """P3: one renewal interval, so that the living can renew what lapsed meanwhile."""
    crashes_are_bounded: bool = True
    """P3: `max_crashes`."""
    cancel_wins_over_coming_back: bool = True
    """H3: every way from RUNNING to PENDING goes to CANCELLED instead."""
    cancel_locks_then_looks: bool = True
    """H8: one clever statement loses against a claim."""


@dataclass(frozen=True, slots=True)
class DispatchRules:
    """Rules of scanners, their memory, and children on the way through the broker."""

    # --- scan
    whole_passes_begin_at_the_front: bool = True
    """No watermark: rows that commit late are found."""
    whole_passes_come_again: bool = True
    """However slow they are: those near the end do not see what commits late."""
    what_cannot_run_is_parked: bool = True
    """Unknown handlers do not stand at the head of the index."""

    # --- publish
    depth_is_asked: bool = True
    """A backlog of ten million rows does not fill the broker."""
    nothing_without_a_live_worker: bool = True
    """H12: a weekend without workers leaves nothing in the broker."""
    leader_that_cannot_publish_resigns: bool = True
    """H13: and lets another one try."""

    # --- remember
    memory_fades: bool = True
    """The broker may lose any message, and tells nobody."""
    refused_is_forgotten: bool = True
    """What the broker did not take is published again at once."""
    memory_knows_scan_at: bool = True
    """H11: a task that came back has another one, and is published again at once."""

    # --- receive
    claims_compare_and_set: bool = True
    """P2: a message that comes twice does no harm."""
    deaf_consumers_are_restarted: bool = True
    """A worker that lives and hears nothing from the broker."""


@dataclass(frozen=True, slots=True)
class GateRules:
    """Rules of claims, ends of runs and checks at the gates."""

    claims_lock_their_gates: bool = True
    """P7: who counts what runs locks the gate first."""
    ends_wake_who_waits: bool = True
    who_holds_looks_once_more: bool = True
    """The run may have ended, and its child looked, before somebody was held."""
    wake_ups_go_to_who_may_run: bool = True
    """Who may not is passed over: each would cost those behind it a second."""
    unused_wake_ups_are_repeated: bool = True
    """Whoever was woken may find that nobody has a hand free for it."""
    the_held_leave_their_other_places: bool = True
    """Who was woken by one gate, and is held by another, passes the place on."""
    gates_are_looked_at_at_last: bool = True
    """A child may die between the end of a run and its word."""
    the_late_leave_wherever_they_stand: bool = True
    """What expired is swept behind a gate, too."""
    who_leaves_lets_others_go_on: bool = True
    """An order key's head that is swept, or cancelled, while it waits for its retry."""


@dataclass(frozen=True, slots=True)
class FlowRules:
    """Rules of the ends of steps, of requeues, events and reruns in flows."""

    release_and_end_are_one_commit: bool = True
    counts_are_read_under_the_lock: bool = True
    """A sibling may have ended while the statement waited for the lock of the flow."""
    requeues_take_the_end_back: bool = True
    """What waits, and has counted this end, waits for the next one, too."""
    who_is_requeued_waits_for_its_needs: bool = True
    """It may have been cancelled before they were met."""
    late_ends_are_refused: bool = True
    what_can_never_start_is_skipped: bool = True
    """It needs the failure of a step that succeeded."""

    # --- events
    who_waits_enters_the_event: bool = True
    """Nobody can lock a row that is not there, and so nobody waits for whom."""
    who_waits_locks_the_event: bool = True
    senders_lock_the_flow: bool = True
    """A requeue may have looked for the event, and its row is not to be seen yet."""
    the_first_event_counts: bool = True
    events_bring_dates_forward: bool = True

    # --- runs that go back until needs are met that they have entered
    who_goes_back_counts_under_the_lock: bool = True
    who_goes_back_locks_the_flow: bool = True

    # --- reruns
    reruns_lock_the_flow: bool = True
    reruns_are_refused_while_a_step_runs: bool = True
    """It has seen results that are taken back."""
