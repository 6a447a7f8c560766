"""The statements of the pool, each without one of its rules."""

from __future__ import annotations

from dev.torture.mutants.change import Change, mutant

FENCES = "tasks_app/pool/fragments/move_rows.py"
FENCE = "p.id = f.id AND p.attempt = f.attempt AND p.lease_token = f.token AND {guard}"
SETTLE = "tests/pool/runs/test_settle.py::test_"
RACES = "tests/pool/runs/test_races.py::test_"
WAITS = f"{RACES}the_second_waits_for_the_first"
RECHECKS = f"{RACES}the_first_rechecks_what_changed"
CONTRACT = "tests/runtime/ends/test_contract.py::test_effects_stand_if_and_only_if_the_outcome_does"
CLAIM = "tasks_app/pool/runs/claim.py"
CLAIM_NEXT = "tasks_app/pool/runs/claim.py"
CLAIMING = "tasks_app/pool/runs/claim.py"
TABLES = "tasks_app/pool/tables.py"
SUCCEED = "tasks_app/pool/runs/settle_success.py"
RESCUE = "tasks_app/pool/runs/leases.py"
POOL = (
    mutant(
        "settle without the attempt",
        "A run writes under its fence: id, attempt, token, RUNNING.",
        FENCES,
        FENCE,
        "p.id = f.id AND p.lease_token = f.token AND {guard}",
        f"{SETTLE}a_stale_fence_changes_nothing",
    ),
    mutant(
        "settle without the token",
        "A run writes under its fence: id, attempt, token, RUNNING.",
        FENCES,
        FENCE,
        "p.id = f.id AND p.attempt = f.attempt AND {guard}",
        f"{SETTLE}a_stale_fence_changes_nothing",
    ),
    mutant(
        "settle by id only",
        "A rescued run must not settle the claim of the one after it.",
        FENCES,
        FENCE,
        "p.id = f.id AND {guard}",
        f"{RACES}after_a_rescue_and_a_second_run_only_the_newest_can_write",
    ),
    mutant(
        "settle what does not run",
        "What was given back is nobody's: only RUNNING rows are settled.",
        "tasks_app/pool/runs/settle.py",
        "_ENDS = admits(Event.SUCCEED)",
        '_ENDS = "true"',
        f"{SETTLE}a_task_that_nobody_runs_cannot_be_settled",
        also=(Change(FENCES, FENCE, "p.id = f.id AND {guard}"),),
    ),
    mutant(
        "the success of one, without its fence",
        "Effects commit only while the claim is ours.",
        SUCCEED,
        "AND p.lease_token = $3 AND",
        "AND (p.lease_token = %(token)s OR true) AND",
        f"{CONTRACT}[plain-row]",
        f"{CONTRACT}[plain-none]",
    ),
    mutant(
        "a cancelled task comes back",
        "Who was told to stop does not run again.",
        "tasks_app/pool/runs/settle.py",
        "CASE WHEN p.cancel_requested_at IS NOT NULL\n",
        "CASE WHEN false\n",
        f"{SETTLE}a_task_that_was_to_be_cancelled_never_comes_back_but_may_have_succeeded",
    ),
    mutant(
        "cancel does not lock before it looks",
        "Cancel sees what a claim under way makes of the row.",
        "tasks_app/pool/tasks/cancel.py",
        'ORDER BY p.id {WAIT}""")',
        'ORDER BY p.id""")',
        f"{WAITS}[a claim, then a cancel flags what runs]",
    ),
    mutant(
        "renewal by owner",
        "A child renews the claims that it holds, each under its fence.",
        "tasks_app/pool/runs/leases.py",
        """SELECT p.id FROM {fenced(f"p.state = '{State.RUNNING}'", _LOCK)})""",
        """SELECT p.id FROM {PENDING} p WHERE p.state = '{State.RUNNING}' AND p.owner IN (
            SELECT owner FROM {PENDING} o WHERE o.id = ANY(CAST(:ids AS bigint[]))) {_LOCK})""",
        "tests/pool/runs/test_leases.py::test_a_stale_fence_gets_and_changes_nothing",
        "tests/pool/runs/test_leases.py::test_other_claims_of_the_same_owner_are_not_renewed",
    ),
    mutant(
        "a rescue that does not look again",
        "A lease that was renewed after the rescuer read it still holds.",
        RESCUE,
        "p WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {_OVER}\n",
        "p WHERE p.id = ANY(CAST(:ids AS bigint[])) AND {_MAY_RESCUE}\n",
        f"{RECHECKS}[a rescue finds it renewed]",
    ),
    mutant(
        "one row that is refused stops all others",
        "What the database refuses for the sake of one row is done to the others.",
        "tasks_app/pool/connection/row_by_row.py",
        "        if not is_of_one_row(error):\n            raise\n        if len(rows) == 1:",
        "        raise\n        if len(rows) == 1:",
        "tests/pool/connection/test_row_by_row.py::"
        "test_one_refused_row_stops_no_other_and_is_named",
    ),
    mutant(
        "a rescue without chance",
        "What vanished together comes back at random distances, not together again.",
        RESCUE,
        "{NOW} + random() * least(",
        "{NOW} + least(",
        "tests/pool/runs/test_leases.py::"
        "test_rescued_tasks_come_back_at_random_distances_that_double_with_each_crash",
    ),
    mutant(
        "a rescue that counts nothing",
        "A task that takes workers with it ends in the error pool, after max_crashes.",
        RESCUE,
        "least(p.crashes + 1, 32767)::smallint AS crashes",
        "p.crashes AS crashes",
        "tests/pool/runs/test_leases.py::test_a_rescued_task_comes_back_charged_one_crash",
    ),
    mutant(
        "a claim that charges",
        "A claim is no attempt that failed: what is given back was not charged.",
        CLAIMING,
        "attempt = p.attempt + 1, lease_token",
        "attempt = p.attempt + 1, failures = p.failures + 1, lease_token",
        "tests/pool/runs/test_claim.py::test_a_claim_charges_nothing_and_leaves_due_at_alone",
    ),
    mutant(
        "a claim that does not count",
        "Each claim raises the attempt: it is half of the fence.",
        CLAIMING,
        "attempt = p.attempt + 1, lease_token",
        "attempt = greatest(p.attempt, 1), lease_token",
        "tests/pool/runs/test_claim.py::test_every_claim_raises_the_attempt_by_one",
    ),
    mutant(
        "a claim without a lock",
        "Of two that claim a row one skips it.",
        CLAIM,
        'ORDER BY p.id FOR NO KEY UPDATE SKIP LOCKED"""',
        'ORDER BY p.id"""',
        "tests/pool/runs/test_claim.py::"
        "test_eight_processes_race_over_ten_copies_of_each_id_and_each_is_claimed_once",
    ),
    mutant(
        "a claim that does not look at the state again",
        "Compare and set: what another has claimed since we read it is not there to take.",
        CLAIM,
        """\
          AND {admits_by_id(Event.CLAIM)} AND {passes}
        ORDER BY p.id FOR NO KEY UPDATE SKIP LOCKED""",
        """\
          AND p.id IN (SELECT o.id FROM {PENDING} o WHERE o.state = '{State.PENDING}')
          AND {passes}
        ORDER BY p.id FOR NO KEY UPDATE SKIP LOCKED""",
        f"{RECHECKS}[a claim finds that another took it]",
    ),
    mutant(
        "a claim by IN (SELECT ... LIMIT), without a lock",
        "Who asks for the next tasks takes rows that nobody else takes.",
        CLAIM_NEXT,
        "ORDER BY p.scan_at, p.id LIMIT :most FOR NO KEY UPDATE SKIP LOCKED) AS p",
        "ORDER BY p.scan_at, p.id LIMIT :most) AS p",
        "tests/pool/runs/test_claim.py::test_two_workers_that_ask_at_once_get_different_tasks",
        f"{RECHECKS}[a claim of what is next finds that another took it]",
    ),
    mutant(
        "the short claim knows no pauses",
        "The short way takes nothing while anything stands before anybody.",
        CLAIM,
        "AND {UNLIMITED} AND {ALL_RUN} AND {NO_QUEUE_DEFAULTS}",
        "AND {UNLIMITED} AND {NO_QUEUE_DEFAULTS}",
        "tests/pool/flow_control/test_limits.py::test_it_takes_nothing_if_anything_hinders",
    ),
    mutant(
        "the short claim takes what must run alone",
        "What was on board of a crash runs alone, whichever way it was claimed.",
        CLAIM,
        'f"NOT {ALONE} AND {UNLIMITED}',
        'f"{UNLIMITED}',
        "tests/pool/flow_control/test_limits.py::test_a_row_not_to_take_with_others_is_left",
    ),
    mutant(
        "a claim before its time",
        "A forged or early message starts nothing.",
        TABLES,
        'READY = f"""p.enabled AND p.due_at <= {NOW}\n    AND',
        'READY = f"""p.enabled AND',
        "tests/pool/runs/test_claim.py::test_a_task_is_not_claimed_before_it_is_due",
    ),
    mutant(
        "a worker's clock decides whose lease is over",
        "Only the database's clock decides.",
        RESCUE,
        'over = {"grace": timedelta(0), "now": now}',
        'over = {"grace": timedelta(0),\n'
        '        "now": now or __import__("datetime").datetime.now().astimezone()}',
        "tests/pool/connection/test_connection.py::test_a_rescue_goes_by_the_databases_clock",
    ),
    mutant(
        "a worker's clock says how long a claim holds",
        "Only the database's clock decides.",
        CLAIM,
        '"ids": array(sorted(map(int, ids))),\n        "now": now,',
        '"ids": array(sorted(map(int, ids))),\n'
        '        "now": now or __import__("datetime").datetime.now().astimezone(),',
        "tests/pool/connection/test_connection.py::test_a_claim_goes_by_the_databases_clock",
    ),
    mutant(
        "a unique_key that is looked up and not locked",
        "Two producers of one key make one task.",
        "tasks_app/pool/tasks/create.py",
        '{ON_CONFLICT if "unique_key" in columns else ""} RETURNING id',
        "RETURNING id",
        "tests/pool/tasks/test_races_of_keys.py::"
        "test_the_second_waits_for_the_first_and_creates_only_after_its_rollback",
        also=(
            Change(
                "tasks_app/pool/tasks/create.py",
                "    for _ in range(TRIES):\n        created = yield insert\n",
                "    if held := row.unique_key and (yield from resolve_in_pool(row, now)):\n"
                "        return held\n    for _ in range(TRIES):\n        created = yield insert\n",
            ),
        ),
    ),
    mutant(
        "a requeue that does not lock what it found",
        "Of two that requeue a task one does.",
        "tasks_app/pool/tasks/requeue.py",
        """{admits(Event.REQUEUE, "t")} FOR UPDATE""",
        """{admits(Event.REQUEUE, "t")}""",
        f"{WAITS}[a requeue of a success, then another]",
        f"{WAITS}[a requeue of a success that rolls back, then another]",
    ),
    mutant(
        "a requeue that leaves the old row behind",
        "An id lies in one pool.",
        "tasks_app/pool/tasks/requeue.py",
        '    _delete(connection, pool, "id", sorted(states))\n',
        "",
        "tests/pool/tasks/test_requeue.py::test_a_finished_task_comes_back_due_now_by_its_id",
    ),
)
