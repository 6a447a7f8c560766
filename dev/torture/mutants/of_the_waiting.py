"""What operators make of tasks that wait; each without one rule."""

from __future__ import annotations

from dev.torture.mutants.change import mutant

AMEND = "tasks_app/pool/tasks/amend.py"
VERBS = "tests/pool/tasks/test_amend_waiting.py::"
RACES = "tests/runtime/api/test_queues.py::"
BULKS = "tests/runtime/api/test_bulk.py::"

WAITING = (
    mutant(
        "waiting: who runs",
        "What runs is left as it is.",
        AMEND,
        "AND {admits_by_id(Event.CLAIM)} AND {which}\n        RETURNING",
        "AND {which}\n        RETURNING",
        f"{VERBS}test_only_what_waits_is_changed",
    ),
    mutant(
        "waiting: run now",
        "The scan finds at once what is to run now.",
        AMEND,
        'f"due_at = {NOW}, scan_at = {NOW}, held_due_at',
        'f"due_at = {NOW}, held_due_at',
        f"{VERBS}test_run_now_ends_the_wait_for_a_date_and_not_twice",
    ),
    mutant(
        "waiting: reschedule",
        "A held task that gets another date stays held.",
        AMEND,
        "    due_at = CASE WHEN {is_put_off()} THEN p.due_at ELSE {_AT} END,\n",
        "    due_at = {_AT},\n",
        f"{VERBS}test_a_rescheduled_task_stays_held_and_gets_the_date_later",
    ),
    mutant(
        "waiting: reprioritise",
        "A scan that has passed finds a task that got another priority.",
        AMEND,
        'CAST(:priority AS smallint), scan_at = greatest({NOW}, p.scan_at)"',
        'CAST(:priority AS smallint)"',
        f"{VERBS}test_reprioritise_lets_a_scan_that_has_passed_find_it_again",
    ),
    mutant(
        "waiting: move",
        "Who is moved waits no longer for the limit of his old queue.",
        AMEND,
        'f"queue = :queue, {_LOOKED_AT}"',
        '"queue = :queue"',
        f"{VERBS}test_move_gives_it_another_queue_and_ends_its_wait_for_a_limit",
    ),
    mutant(
        "waiting: enable",
        "The scan finds what was enabled.",
        AMEND,
        'f"enabled = true, {_LOOKED_AT}"',
        '"enabled = true"',
        f"{VERBS}test_a_disabled_task_is_enabled_again_and_found",
    ),
    mutant(
        "waiting: disable",
        "Who is disabled waits no longer for a limit, and takes no wake-up of its line.",
        AMEND,
        'f"enabled = false, {_LOOKED_AT}"',
        '"enabled = false"',
        f"{VERBS}test_a_disabled_task_waits_for_no_limit_and_leaves_when_due",
    ),
    mutant(
        "waiting: hold",
        "What is held is found by no scan and taken by no claim.",
        AMEND,
        "    due_at = {HELD_DUE}, scan_at = {HELD_DUE}, waits_for",
        "    waits_for",
        f"{VERBS}test_no_scan_and_no_claim_takes_what_is_held",
    ),
    mutant(
        "waiting: release",
        "A task whose date passed while it was held is due from its release on.",
        AMEND,
        '_GIVEN_BACK = f"greatest({NOW}, p.held_due_at)"',
        '_GIVEN_BACK = "p.held_due_at"',
        f"{VERBS}test_release_gives_the_date_back_and_one_that_has_passed_means_now",
    ),
    mutant(
        "waiting: the next in line",
        "Who leaves his place in the line of an order key lets the next one try.",
        AMEND,
        "_LEAVE_THEIR_PLACE = {BulkAction.HOLD, BulkAction.RESCHEDULE, BulkAction.DISABLE}",
        "_LEAVE_THEIR_PLACE: set[BulkAction] = set()",
        f"{VERBS}test_who_leaves_his_place_in_the_line_of_an_order_key_lets_the_next_one_try",
    ),
    mutant(
        "waiting: expiry",
        "What is held expires at its time.",
        "tasks_app/pool/fragments/conditions.py",
        "ELSE greatest(p.due_at, p.expires_at) END",
        "ELSE {FAR} END",
        f"{VERBS}test_what_is_held_expires_at_its_time_and_is_never_claimed_then",
    ),
    mutant(
        "waiting: cancelled",
        "A held task that is cancelled shows the date that it had.",
        "tasks_app/pool/fragments/move_rows.py",
        """f"{own_date()} AS due_at" if c == "due_at" else f"p.{c}\"""",
        """f"p.{c}\"""",
        f"{VERBS}test_a_cancelled_one_shows_the_date_it_had_and_comes_back_free",
    ),
    mutant(
        "waiting: producers",
        "A producer who reschedules by the unique key releases nothing.",
        "tasks_app/pool/tasks/unique_keys.py",
        "        due_at = CASE WHEN {is_put_off()} THEN p.due_at ELSE {_DUE_IN_TIME} END,\n"
        "        scan_at = CASE WHEN {is_put_off()} THEN p.scan_at ELSE {_DUE_IN_TIME} END,\n",
        "        due_at = {_DUE_IN_TIME}, scan_at = {_DUE_IN_TIME},\n",
        f"{VERBS}test_a_producer_that_reschedules_by_unique_key_leaves_it_held",
    ),
    mutant(
        "waiting: rate",
        "A bulk that was cut off goes on at its rate behind its last step.",
        "tasks_app/runtime/api/bulk_step.py",
        "{NEXT_AT: self._next_at.isoformat()} if self._next_at else None",
        "None",
        f"{BULKS}test_a_killed_one_goes_on_at_its_rate_behind_its_last_step",
    ),
    mutant(
        "waiting: parameters",
        "The rest of a bulk is done with what its first stage was told.",
        "tasks_app/runtime/api/bulk.py",
        "means = {**chosen.plain(), **change.plain()}",
        "means = chosen.plain()",
        f"{BULKS}test_the_rest_is_done_with_what_the_first_stage_was_told",
    ),
    mutant(
        "waiting: looks without a lock",
        "A verb waits for what is open, and acts as if behind it.",
        AMEND,
        '    FOR NO KEY UPDATE"',
        '"',
        f"{RACES}test_a_verb_waits_for_what_is_open_and_acts",
    ),
    mutant(
        "waiting: it was so already",
        "No verb says that nothing was to be done, of a task whose run ended while it looked.",
        "tasks_app/runtime/api/amend_waiting.py",
        "                continue  # its",
        "                return Changed.UNCHANGED  # its",
        f"{RACES}test_its_run_ends_while_a_verb_looks_then_the_answer_is_true",
    ),
    mutant(
        "requeue: it went by",
        "A task that fails while a requeue looks is found.",
        "tasks_app/pool/tasks/requeue.py",
        "        if state is None:\n",
        "        if state is None or pool_of(State(state)) is not Pool.PENDING:\n",
        f"{RACES}test_its_run_fails_while_a_requeue_looks_then_it_is_found",
    ),
    mutant(
        "edit: it went by",
        "A payload is written where the task has gone meanwhile.",
        "tasks_app/runtime/api/amend_waiting.py",
        "    return False\n",
        "        return False\n    return False\n",
        f"{RACES}test_its_run_fails_while_an_edit_looks_then_it_is_edited",
    ),
)
