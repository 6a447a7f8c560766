"""The Celery edge without one of its rules."""

from __future__ import annotations

from dev.torture.mutants.change import mutant

LIMITS = "tests/broker/test_config.py::test_"
LEADER = "tests/runtime/leader/test_leader.py::TestABrokerThatRefuses::test_"
POOLS = "tests/broker/test_two_pools.py::"
REFUSALS = "tests/broker/test_celery_settings.py::test_"
SETTINGS = "tests/broker/test_celery_settings.py::test_"
RESULTS = "tests/broker/celery_tasks/test_results.py::test_"
CANVAS = "tests/broker/celery_tasks/test_canvas.py::test_"

BROKER = (
    mutant(
        "Celery's limits stay on the pool",
        "A time limit of Celery bounds a task, never a message of many.",
        "tasks_app/broker/config.py",
        "    worker.soft_time_limit = worker.time_limit = None\n",
        "",
        f"{LIMITS}of_celerys_limit_and_ours_the_shorter_holds_for_a_task",
    ),
    mutant(
        "settings of Celery's tasks reach our messages",
        "Nothing that is set for Celery's tasks is meant for what carries ours.",
        "tasks_app/broker/app.py",
        "    from_config = ()\n",
        "",
        f"{SETTINGS}no_message_feels_a_time_limit",
    ),
    mutant(
        "annotations reach our messages",
        "Nothing that is set for Celery's tasks is meant for what carries ours.",
        "tasks_app/broker/app.py",
        "    def annotate(cls) -> None:",
        "    def annotated(cls) -> None:",
        f"{SETTINGS}no_message_of_ours_feels_what_is_neutralised",
    ),
    mutant(
        "remote control sets a limit of a message",
        "Remote control cannot bound what carries many tasks.",
        "tasks_app/broker/control.py",
        '    wrappers |= {"time_limit": _for_others, "rate_limit": _for_others}\n',
        "",
        f"{REFUSALS}the_remote_commands_that_are_refused_are_for_our_messages",
    ),
    mutant(
        "a message is read before its kind is known",
        "Nothing but JSON is read, whatever accept_content lets in.",
        "tasks_app/broker/consumer.py",
        '    if message.content_type != "application/json" or not (is_name',
        "    if not (is_name",
        f"{REFUSALS}what_is_no_json_is_not_even_read",
    ),
    mutant(
        "short tasks know no default limit",
        "TASKS_APP_TIMEOUT bounds the shortest tasks, too.",
        "tasks_app/runtime/execution/runner.py",
        "or limits.limit_s(spec))",
        "or spec.timeout)",
        "tests/runtime/execution/test_short_tasks.py::test_a_limit_for_all_holds_within_a_row",
    ),
    mutant(
        "a broker that refuses ends the leader's duties",
        "What needs no broker goes on while it refuses messages.",
        "tasks_app/runtime/leader/leader.py",
        "            trouble = self._publish()\n",
        "            self._step_down_if(trouble := self._publish())\n",
        f"{LEADER}it_stops_neither_schedules_nor_rescue_nor_the_word_that_they_are_done",
    ),
    mutant(
        "a broker that refuses everybody changes the leader",
        "Who leads goes on where nobody's messages are taken.",
        "tasks_app/runtime/leader/leader.py",
        "        if not isinstance(trouble, RefusedError):\n",
        "        if trouble is not None:\n",
        f"{LEADER}a_leader_stays_when_all_are_refused",
    ),
    mutant(
        "who leads next publishes before it asks",
        "A broker that refused the last leader is asked before anything is published.",
        "tasks_app/runtime/leader/leader.py",
        "                self._dispatcher.probe_first()\n",
        "                pass\n",
        f"{LEADER}who_leads_next_asks_before_it_enters_anything",
    ),
    mutant(
        "a stranger's message is taken",
        "A message of another pool is refused.",
        "tasks_app/broker/messages.py",
        "if named is None or own is None or named == own:",
        "if True:",
        f"{POOLS}TestOneMessage::test_another_pools_is_refused",
    ),
    mutant(
        "a message without a name is refused",
        "A message of the version before is taken: workers are replaced one by one.",
        "tasks_app/broker/messages.py",
        "if named is None or own",
        "if own",
        f"{POOLS}TestOneMessage::test_ours_is_taken_and_so_is_one_of_the_version_before",
    ),
    mutant(
        "hints at a pool under another's name",
        "A producer of two pools hints at the one whose name it says.",
        "tasks_app/runtime/hints.py",
        "return name in (None, self.pool)",
        "return True",
        f"{POOLS}test_a_producer_asks_once_and_hints_at_one_pool_only",
    ),
    mutant(
        "a Celery worker enters no breakers",
        "What handlers depend on is known from the start of a worker, however it is started.",
        "tasks_app/broker/checks.py",
        "                enter_breakers(connection, HANDLERS)\n",
        "",
        "tests/broker/test_worker.py::test_few_more_calls_go_out_than_its_threshold",
    ),
    mutant(
        "a canvas forgets that a signature is immutable",
        "An immutable signature waits, and takes no result.",
        "tasks_app/broker/canvas.py",
        "        if signature.immutable:\n",
        "        if False:\n",
        f"{CANVAS}the_last_gets_what_it_gets_in_celery",
    ),
    mutant(
        "the options of a chain are those of all its tasks",
        "The options of a chain are its first task's.",
        "tasks_app/broker/canvas.py",
        "            options = {}  # those",
        "            pass  # those",
        f"{CANVAS}options_are_those_that_celery_would_use",
    ),
    mutant(
        "a chord's errback hears nothing of its header",
        "Where Celery would call the body's errback, a step of the flow does.",
        "tasks_app/broker/canvas.py",
        "        if not self._app.conf.task_allow_error_cb_on_chord_header:\n",
        "        if False:\n",
        f"{CANVAS}an_errback_of_a_chord_hears_of_its_header",
    ),
    mutant(
        "a retry with other arguments takes the result again",
        "self.retry(args=…) gives all arguments, also what came before them.",
        "tasks_app/broker/celery_tasks.py",
        "            payload=None if unchanged else given,\n",
        '            payload=None if unchanged else {**given, "first": "1 a"},\n',
        f"{CANVAS}a_retry_with_other_arguments_gives_all_of_them",
    ),
    mutant(
        "AsyncResult shows any row with this biz_key",
        "A task_id names the rows of its calls alone.",
        "tasks_app/pool/tasks/browse.py",
        " AND t.headers->>'{CALL_ID}' = :given\n",
        "\n",
        f"{RESULTS}a_row_of_another_with_this_biz_key_is_not_it",
    ),
    mutant(
        "AsyncResult shows what an earlier attempt said",
        "What update_state says holds for its own run.",
        "tasks_app/pool/runs/heartbeats.py",
        'json.dumps({"id": task_id, "attempt": attempt})',
        'json.dumps({"id": task_id})',
        f"{RESULTS}a_run_shows_what_update_state_said_in_this_attempt",
    ),
    mutant(
        "AsyncResult shows masked values",
        "What rules mask stays masked in the exceptions of AsyncResult.",
        "tasks_app/broker/results.py",
        "concealed_attempts(failed_attempts(connection, task.id)[-1:], task)",
        "failed_attempts(connection, task.id)[-1:]",
        f"{RESULTS}what_is_masked_stays_so",
    ),
)
