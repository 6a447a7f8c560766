"""Order keys, limits, breakers, fair queues and windows, each time without one of their rules."""

from __future__ import annotations

from torture.mutants.change import mutant

ROOMS = "tasks_app/pool/flow_control/capacity.py"
KEEPER = "tasks_app/runtime/flow_control/admission.py"
RACES = "tests/pool/flow_control/test_races_of_gates.py::test_"
LIMITS = "tests/pool/flow_control/test_limits.py::test_"
RUNS = "tests/runtime/flow_control/test_gates.py::test_"
SHARES = "tests/runtime/flow_control/test_fair_queues.py::test_"
BREAKER = "tests/pool/flow_control/test_breaker.py::"
WAKE = "tasks_app/pool/flow_control/wake.py"
WAKES = "tests/pool/flow_control/test_wakes.py::test_"
SWEEPS = "tests/runtime/leader/test_sweeper.py::test_"

GATES = (
    mutant(
        "gates that are not locked",
        "Who counts what runs behind a gate locks the gate first.",
        ROOMS,
        " FOR NO KEY UPDATE OF t",
        " ",
        f"{RACES}two_claims_of_one_limit_together_take_no_more_than_it_allows",
    ),
    mutant(
        "gates locked as they come",
        "All lock gates in one order.",
        ROOMS,
        '{_BUCKETS} ORDER BY t.gate COLLATE "C" FOR',
        "{_BUCKETS} ORDER BY array_position(CAST(:gates AS text[]), t.gate) FOR",
        f"{RACES}while_it_waits_for_one_gate_a_claim_has_none_that_comes_later",
    ),
    mutant(
        "a limit that counts nobody",
        "What runs counts, whoever runs it.",
        "tasks_app/domain/flow_control/admission.py",
        "max(0.0, limit.most - running)",
        "max(0.0, limit.most)",
        f"{RUNS}no_more_than_the_limit_run_at_a_time",
    ),
    mutant(
        "an order key without a head",
        "Of a key the first goes, and nobody else.",
        "tasks_app/domain/flow_control/admission.py",
        "(not self.ordered or task_id == self.head)",
        "True",
        "tests/domain/flow_control/test_admission.py::test_of_an_order_key_the_head_passes_alone",
    ),
    mutant(
        "a head that failed holds nobody",
        "Behind a task that failed for good its key waits, if it blocks.",
        ROOMS,
        "WHERE NOT EXISTS (\n        SELECT FROM {ERROR} e",
        "WHERE true OR NOT EXISTS (\n        SELECT FROM {ERROR} e",
        f"{RUNS}a_head_that_failed_for_good_blocks_until_it_is_requeued",
    ),
    mutant(
        "a bucket that is never emptied",
        "Each start takes a token.",
        ROOMS,
        "rooms[gate].tokens -= started[gate]",
        "rooms[gate].tokens -= 0",
        f"{LIMITS}a_bucket_lets_its_burst_pass_and_then_what_flows_in",
    ),
    mutant(
        "a claim that overlooks gates",
        "A plain claim takes nothing that a gate stands before.",
        "tasks_app/pool/tables.py",
        '"p.order_key IS NULL AND p.limit_key IS NULL"',
        '"true"',
        f"{RACES}a_plain_claim_takes_nothing_that_a_gate_stands_before",
    ),
    mutant(
        "nobody is woken",
        "Whose run ends wakes who waits behind it.",
        KEEPER,
        "self._ended.update(gate for some in gates for gate in some)",
        "pass",
        f"{RUNS}tasks_of_one_key_run_one_at_a_time_lowest_id_first",
    ),
    mutant(
        "who holds rows does not look again",
        "Who holds a row looks once more after his COMMIT.",
        KEEPER,
        "        self._wake(admission.behind, now=now)\n        return claimed",
        "        return claimed",
        f"{RUNS}who_holds_a_task_wakes_it_if_the_run_before_it_ended_meanwhile",
    ),
    mutant(
        "strict order without turns",
        "Producers of a strict key take turns until they commit.",
        "tasks_app/pool/tasks/create.py",
        "SELECT pg_advisory_xact_lock(k.hash) FROM",
        "SELECT pg_advisory_xact_lock_shared(k.hash) FROM",
        "tests/pool/tasks/test_strict_order.py::"
        "test_the_second_producer_of_a_key_waits_for_the_first_ones_commit",
    ),
    mutant(
        "shares without weights",
        "A key's share is its weight.",
        "tasks_app/domain/flow_control/fair_share.py",
        "return self.weights.get(key, 1.0)",
        "return 1.0",
        f"{SHARES}weights_are_shares",
    ),
    mutant(
        "shares that are not charged",
        "Who had something is behind those who had nothing.",
        "tasks_app/domain/flow_control/fair_share.py",
        "self._had[key] = self._at + self._price(key)",
        "self._had[key] = 0.0",
        f"{SHARES}keys_share_a_queue_whoever_came_first",
    ),
    mutant(
        "priorities without a floor",
        "Each priority that waits is owed a task of twenty.",
        "tasks_app/domain/flow_control/fair_share.py",
        "owed[waiting] = owed.get(waiting, 0) + 1",
        "owed[waiting] = 0",
        f"{SHARES}each_priority_has_its_floor",
    ),
    mutant(
        "a breaker that holds nothing",
        "What depends on something that is down is not claimed.",
        "tasks_app/pool/fragments/availability.py",
        "unnest(b.names) FROM {BREAKER} b WHERE b.state <> 'closed')",
        "unnest(b.names) FROM {BREAKER} b WHERE b.state = 'none')",
        f"{BREAKER}TestHolding::test_its_tasks_are_not_claimed_and_others_are",
    ),
    mutant(
        "a breaker that lets all through at once",
        "A breaker that was open lets a few probes through first.",
        "tasks_app/pool/flow_control/breaker.py",
        "wanted = standing.breaker.probes - number",
        "wanted = 1_000",
        f"{BREAKER}TestProbing::test_as_many_as_declared_are_let_through_and_no_more",
    ),
    mutant(
        "windows that the claim does not know",
        "Nothing of a queue is claimed outside of its windows.",
        "tasks_app/pool/fragments/availability.py",
        "GROUP BY w.queue HAVING NOT bool_or({OPEN})",
        "GROUP BY w.queue HAVING false",
        "tests/pool/flow_control/test_queue_settings.py::TestWindows::"
        "test_outside_its_windows_nothing_of_a_queue_is_claimed",
    ),
    mutant(
        "a wake-up for whoever is first",
        "A wake-up goes to a task that may run now.",
        WAKE,
        '{READY} AND {runs("p.queue")} AND {is_free()} AS may_run',
        "true AS may_run",
        f"{WAKES}a_wake_up_passes_over_those_that_stand_still",
        f"{WAKES}a_wake_up_passes_over_those_that_never_run",
    ),
    mutant(
        "a wake-up for one that another gate holds",
        "Who is woken finds room at all of its gates.",
        WAKE,
        "all(room.admits(row.id) for room in others)",
        "True",
        f"{WAKES}a_wake_up_passes_over_those_that_another_gate_holds",
    ),
    mutant(
        "a wake-up that is given once",
        "A gate that woke somebody is looked at again soon: perhaps nobody has a hand free.",
        WAKE,
        "waits[gate] = min(waits[gate], UNUSED_S)",
        "pass",
        f"{WAKES}a_wake_up_that_nobody_used_is_followed_by_another_after_a_second",
    ),
    mutant(
        "a long line that is read in part",
        "What of a line was not read is read at once.",
        WAKE,
        "waits |= dict.fromkeys(unread, SHORTEST_LOOK_S)",
        "pass",
        f"{WAKES}of_a_very_long_line_that_stands_still_the_rest_is_read_soon",
    ),
    mutant(
        "a place that is left behind",
        "Who is held by one gate leaves its place at the others to the next.",
        "tasks_app/domain/flow_control/admission.py",
        "admission.behind.update(gates)",
        "admission.behind.add(gate)",
        f"{RUNS}who_is_woken_at_one_gate_and_held_at_another_leaves_its_place_to_the_next",
    ),
    mutant(
        "a head that is cancelled and holds its key",
        "Who waits behind a task that is cancelled goes on.",
        "tasks_app/pool/tasks/cancel.py",
        "    if keys:  #",
        "    if False:  #",
        f"{RUNS}a_head_that_is_cancelled_while_it_waits_lets_the_next_go_on",
    ),
    mutant(
        "what expired is swept where the scan comes by",
        "What must not run leaves wherever it stands.",
        "tasks_app/pool/dispatch/set_aside.py",
        '{_LEAVES_AT} <= {NOW}"""',
        '{_LEAVES_AT} <= {NOW} AND p.scan_at <= {NOW}"""',
        f"{SWEEPS}what_must_not_run_leaves_wherever_it_stands",
    ),
    mutant(
        "a leader that sees nothing to sweep",
        "A pool in which a task has expired is not quiet.",
        "tasks_app/pool/dispatch/idle_check.py",
        "or self.barred or near",
        "or near",
        f"{SWEEPS}a_quiet_leader_notices_that_a_task_has_expired",
    ),
    mutant(
        "a head that is swept and holds its key",
        "Who waits behind a task that is swept goes on.",
        "tasks_app/runtime/leader/sweeper.py",
        "self._admission.gone(swept, now=now)",
        "pass",
        f"{SWEEPS}whoever_waits_behind_one_that_is_swept_is_woken",
    ),
    mutant(
        "a nap that nothing ends",
        "The end of a run ends the nap of who claims from the pool.",
        "tasks_app/runtime/worker/standalone.py",
        "self._inflight.stirred.wait(interval)",
        "self._inflight.stopping.wait(interval)",
        "tests/runtime/worker/test_standalone.py::"
        "test_who_waits_behind_a_run_starts_when_it_ends_not_at_the_next_scan",
        "tests/runtime/worker/test_standalone.py::"
        "test_a_callback_starts_when_its_group_ends_not_at_the_next_scan",
    ),
    mutant(
        "a head that expires and holds its key",
        "Who waits behind a head that waits for its retry goes on when that expires.",
        "tasks_app/pool/flow_control/waiting_list.py",
        "min(LOOK_AGAIN_S, room.leaves_s)",
        "LOOK_AGAIN_S",
        f"{WAKES}behind_a_head_that_waits_for_its_retry_it_is_looked_when_that_expires",
    ),
    mutant(
        "a run that is older than the limit",
        "Who waits for a run that began before there was the limit is looked at each second.",
        "tasks_app/pool/flow_control/waiting_list.py",
        "room.since < limit.changed_at + UNCOMMITTED",
        "False",
        "tests/runtime/flow_control/test_gates.py::test_runs_that_began_before_there_was_a_limit_are_looked_for",
    ),
    mutant(
        "gates are looked at each second",
        "As long as runs tell of their end, nobody looks.",
        "tasks_app/pool/flow_control/waiting_list.py",
        "room.since < limit.changed_at + UNCOMMITTED",
        "True",
        "tests/runtime/flow_control/test_gates.py::test_runs_that_know_of_the_limit_are_not_looked_for",
    ),
)
