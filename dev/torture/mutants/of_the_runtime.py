"""Dispatcher, runner, housekeeper and reaper, each without one of their rules."""

from __future__ import annotations

from dev.torture.mutants.change import Change, mutant

DISPATCHER = "tasks_app/runtime/leader/dispatcher.py"
PUBLISHED = "tasks_app/runtime/leader/dispatcher.py"
RUNNER = "tasks_app/runtime/execution/runner.py"
RETURNER = "tasks_app/runtime/worker/housekeeper.py"
REAPER = "tasks_app/runtime/worker/reaper.py"
SCAN = "tests/runtime/leader/test_dispatcher.py::"
LOOKAHEAD = "tasks_app/runtime/leader/dispatcher.py"
DELAYED = "tests/runtime/leader/test_delays.py::"
ASYNC = "tests/runtime/execution/test_async_pool.py::TestCancellations::"

CANCELS = "tests/runtime/handlers/test_interrupts.py::"
INTERRUPTS = "tasks_app/runtime/handlers/interrupts.py"
KILLS = "tests/runtime/worker/test_limits.py::"

RUNTIME = (
    mutant(
        "an interruption is left to the next run",
        "A cancel hits no run but its own.",
        INTERRUPTS,
        "if _due.pop().is_open:",
        "if _due.pop():",
        f"{CANCELS}TestAtTheEnd::test_a_signal_that_comes_too_late_raises_nothing",
    ),
    mutant(
        "an exception stays set in a thread",
        "A cancel hits neither our COMMIT nor the next run.",
        INTERRUPTS,
        "            _set_exception(threading.get_ident(), _NOTHING)\n",
        "            pass\n",
        f"{CANCELS}TestAtTheEnd::test_what_was_set_in_a_thread_is_taken_back",
    ),
    mutant(
        "a handler is left while it is interrupted",
        "Leaving a handler and interrupting it exclude each other.",
        INTERRUPTS,
        "        with self._lock:\n            self.is_open = False\n",
        "        self.is_open = False\n",
        f"{CANCELS}TestAtTheEnd::test_leaving_waits_for_the_interruption",
    ),
    mutant(
        "neighbours of a kill are charged",
        "A kill that a cancel asked for charges nobody.",
        REAPER,
        "        if view.for_cancel:\n            self._give_back(",
        "        if False:\n            self._give_back(",
        f"{KILLS}test_a_kill_for_a_cancel_charges_nobody",
    ),
    mutant(
        "a cancel interrupts what may not be",
        "A handler that is not cancellable is only told.",
        RETURNER,
        "                if spec is not None and spec.cancellable:\n",
        "                if spec is not None:\n",
        f"{CANCELS}test_one_that_cannot_be_cancelled_is_only_told",
    ),
    mutant(
        "a successor that waits",
        "A child that retires is replaced before its last tasks end.",
        "tasks_app/runtime/worker/standalone.py",
        "            if threads and self._room <= 0:",
        "            if False and self._room <= 0:",
        "tests/runtime/worker/test_standalone.py::test_the_parent_sees_who_retires_before_it_ends",
    ),
    mutant(
        "stacks that nobody asked for",
        "Who asks for stacks is answered once.",
        "tasks_app/pool/runs/heartbeats.py",
        "SET asks = false WHERE",
        "SET asks = asks WHERE",
        "tests/runtime/worker/test_stacks.py::test_who_is_asked",
    ),
    mutant(
        "a run that never began is forgotten",
        "However a task of the event loop ends, its run is given back or has ended.",
        "tasks_app/runtime/execution/pools.py",
        "self._leave(run)  # it may not even have begun",
        "pass",
        f"{ASYNC}test_at_whichever_await_one_comes_the_run_ends_or_goes_back",
    ),
    mutant(
        "runs are among all tasks",
        "No handler finds the runs of others.",
        "tasks_app/runtime/execution/pools.py",
        "    _unregister_task(task)\n",
        "",
        f"{ASYNC}test_who_cancels_all_tasks_of_the_loop_hits_no_run",
    ),
    mutant(
        "cancelled is failed",
        "Whose part another has cancelled is not charged.",
        "tasks_app/runtime/execution/completion.py",
        "if isinstance(error, CancelledError) and spec.is_async and not task.runs_alone:",
        "if False:",
        f"{ASYNC}test_who_loses_its_own_task_is_uncharged_once_then_runs_alone",
    ),
    mutant(
        "a lane that breaks keeps its run",
        "Whoever carries out a run leaves it, by whatever way.",
        "tasks_app/runtime/execution/runner.py",
        "self._inflight.return_unended(run)",
        "pass",
        "tests/runtime/execution/test_thread_pool.py::"
        "test_whichever_way_a_run_is_left_it_ends_or_goes_back",
    ),
    mutant(
        "timers stay armed",
        "What a handler armed ends with its run.",
        "tasks_app/runtime/execution/invocation.py",
        "signal.setitimer(timer, 0)",
        "pass",
        "tests/runtime/execution/test_process_guard.py::"
        "test_no_timer_or_limit_that_a_handler_armed_outlives_it",
    ),
    mutant(
        "a look ahead that begins behind the claim",
        "A nap ends for what became due after the claim that found nothing.",
        "tasks_app/runtime/worker/standalone.py",
        "since = timedelta(seconds=time.monotonic() - self._claimed_at + ON_THE_WAY_S)",
        "since = timedelta(0)",
        "tests/runtime/worker/test_standalone.py::test_no_nap_passes_over_what_became_due_after_the_claim",
    ),
    mutant(
        "parked although another one knows it",
        "A worker without a broker parks nothing that a live worker of the queue knows.",
        "tasks_app/runtime/worker/standalone.py",
        "return self._names | others",
        "return self._names",
        "tests/runtime/execution/test_inflight.py::"
        "test_without_a_broker_it_parks_only_what_nobody_knows",
    ),
    mutant(
        "a flood of stale messages",
        "While messages bring nothing to do, a child looks by itself what its queue has.",
        "tasks_app/runtime/execution/executor.py",
        "published=wake and claimed_any",
        "published=wake",
        "tests/runtime/execution/test_run_times.py::"
        "test_messages_whose_tasks_are_done_keep_nobody_waiting",
    ),
    mutant(
        "a message at the wrong address",
        "What only other workers of the queue know is passed on to them.",
        "tasks_app/runtime/execution/executor.py",
        "self._forwarder.forward_unknown(group)",
        "pass",
        "tests/runtime/execution/test_inflight.py::test_what_only_others_know_is_passed_on",
    ),
    mutant(
        "remembers for ever",
        "The broker may lose any message: what should be over is published again.",
        PUBLISHED,
        "            if now - at < (KEPT_S if len(messages) <= out else IN_HAND_S):\n",
        "            if True:\n",
        f"{SCAN}test_what_a_message_held_goes_out_again_when_it_should_be_over",
        f"{SCAN}test_what_waits_in_the_broker_is_left_alone_for_longer",
    ),
    mutant(
        "remembers what the broker refused",
        "Only what the broker took is left out of the next pass.",
        DISPATCHER,
        "enumerate(found.messages) if place not in wrong]",
        "enumerate(found.messages)]",
        f"{SCAN}TestABrokerThatIsAway::test_a_queue_missing_in_the_broker_is_skipped",
    ),
    mutant(
        "remembers a task that came back",
        "A row that was rescheduled after its message was made is visible.",
        PUBLISHED,
        "return known is not None and known[1] == scan_at",
        "return known is not None",
        f"{SCAN}test_a_task_that_came_back_goes_out_though_published_a_moment_ago",
    ),
    mutant(
        "does not ask the depth",
        "No more messages wait in the broker than the children can use.",
        DISPATCHER,
        "depths = self._publisher.depths(asked) if asked else {}",
        "depths: dict[str, int] = {}",
        f"{SCAN}test_the_room_is_two_messages_per_child_or_thread_and_some_to_spare",
    ),
    mutant(
        "a watermark",
        "A whole pass begins at the front: rows that commit late are found.",
        DISPATCHER,
        "                self._positions.forget()\n",
        "                pass\n",
        f"{SCAN}test_a_row_that_commits_late_is_found_behind_higher_ids",
    ),
    mutant(
        "bookmarks that go on behind what there was no room for",
        "A pass goes on at the first row for which there was no room.",
        DISPATCHER,
        "self._positions.move(found, done)",
        "self._positions.move(found, len(found.ids))",
        f"{SCAN}test_a_pass_in_between_leaves_nothing_behind_that_there_was_no_room_for",
    ),
    mutant(
        "passes over the pool never come back to its front",
        "What was committed late, or has come back, stands before the places.",
        "tasks_app/runtime/scan.py",
        "        if self.places and began < self._back_at:\n",
        "        if self.places:\n",
        "tests/runtime/leader/test_delays.py::"
        "test_while_there_is_something_a_twentieth_of_the_time_is_for_whole_ones",
    ),
    mutant(
        "the runner catches Exception only",
        "Whatever a handler raises is an outcome, SystemExit too.",
        RUNNER,
        "    except BaseException as error:\n                    self._completion.end_w",
        "    except Exception as error:\n                    self._completion.end_w",
        "tests/runtime/test_outcomes.py::test_what_is_raised_is_recorded",
        also=(
            Change(
                RUNNER,
                "    except BaseException as error:\n                self._completion.give_up",
                "    except Exception as error:\n                self._completion.give_up",
            ),
        ),
    ),
    mutant(
        "at_most_once outcomes are collected",
        "The slot names it until its settle is answered: else a death runs it again.",
        "tasks_app/runtime/execution/completion.py",
        "elif settlement.event is Event.SUCCEED and not run.task.at_most_once:",
        "elif settlement.event is Event.SUCCEED:",
        "tests/runtime/test_outcomes.py::TestAtMostOnce::"
        "test_the_slot_names_it_until_its_outcome_is_answered",
    ),
    mutant(
        "the slot is written after decoding",
        "Whose fault a death is must be known before the payload is touched.",
        RUNNER,
        "                        made = self._invocation.make(",
        "                        self._invocation._arguments(run, spec, lane, context)\n"
        "                        self._slot.start(run.task.run, 0.0)\n"
        "                        made = self._invocation.make(",
        "tests/runtime/test_outcomes.py::TestPayload::"
        "test_the_slot_names_a_task_before_its_payload_is_read",
        also=(
            Change(
                RUNNER,
                "        self._slot.start(announced, hard_timeout_s)\n",
                "",
            ),
        ),
    ),
    mutant(
        "the reaper charges the neighbours",
        "Only the task that ran is charged.",
        REAPER,
        "guilty = [task for task in claims if task.run in ran or view.unlisted]",
        "guilty = list(claims)",
        "tests/runtime/worker/test_reaper.py::test_only_the_task_that_ran_is_charged",
        also=(
            Change(
                REAPER,
                "innocent = [task for task in claims if not (task.run in ran or view.unlisted)]",
                "innocent: list[ClaimedTask] = []",
            ),
        ),
    ),
    mutant(
        "the living are reaped",
        "Nobody is reaped before his process is gone.",
        REAPER,
        "            if not view.dead:\n                continue\n",
        "",
        "tests/runtime/worker/test_reaper.py::test_a_living_child_is_left_alone",
    ),
    mutant(
        "what a lock held up is forgotten",
        "A give-back that had to skip a row asks for it again.",
        RETURNER,
        "            if fence.task_id not in held:\n                self._inflight.drop(fence)",
        "            self._inflight.drop(fence)",
        "tests/runtime/worker/test_housekeeper.py::"
        "test_a_locked_row_is_given_back_when_it_can_be_and_not_forgotten",
    ),
    mutant(
        "a claim without an answer is left to its lease",
        "It is given back by its token, until that is answered.",
        "tasks_app/runtime/execution/claims.py",
        "            self._inflight.write_later(lambda connection: "
        "release_token(connection, token))\n",
        "",
        "tests/runtime/worker/test_housekeeper.py::test_a_claim_whose_reply_is_lost_is_given_back_uncharged",
    ),
    mutant(
        "rescuers do not wait after an outage",
        "The living renew first what lapsed while the database was away.",
        "tasks_app/runtime/leader/rescuer.py",
        "        except SQLAlchemyError:\n            self.let_renew()\n            raise\n",
        "        except SQLAlchemyError:\n            raise\n",
        "tests/runtime/leader/test_rescuer.py::test_after_an_outage_the_workers_have_time_to_renew_first",
    ),
    mutant(
        "hints before the commit",
        "A hint tells of what is committed.",
        "tasks_app/runtime/hints.py",
        "        transaction = session.get_nested_transaction() or",
        "        self.offer(hints_of_new(rows, ids))\n"
        "        transaction = session.get_nested_transaction() or",
        "tests/runtime/hints/test_hints.py::TestWhatIsTold::test_a_committed_task_and_not_before",
        "tests/runtime/hints/test_hints.py::TestWhatIsTold::test_nothing_of_a_rollback",
    ),
    mutant(
        "rows wait for hints",
        "The scan finds a task at once, whether or not a hint or a notice is heard.",
        "tasks_app/pool/tasks/create.py",
        '"scan_at": due}',
        """"scan_at": f"{due} + interval '3 s'"}""",
        "tests/runtime/hints/test_hints.py::test_the_scan_need_not_wait_for_a_hint",
    ),
    mutant(
        "delayed tasks are announced by each pass",
        "The leader remembers what it announced.",
        LOOKAHEAD,
        "if known is None or abs(known - due_at) > SAME_S:",
        "if True:",
        f"{DELAYED}test_what_is_due_before_the_pass_after_next_is_announced_once",
    ),
    mutant(
        "a task that was put off is announced no more",
        "The leader remembers instants, not tasks.",
        LOOKAHEAD,
        "if known is None or abs(known - due_at) > SAME_S:",
        "if known is None:",
        f"{DELAYED}test_a_task_that_was_put_off_is_announced_anew",
    ),
    mutant(
        "a hint that nobody answered is forgotten",
        "What a producer's thread sent over a connection that was dead already is sent again.",
        "tasks_app/runtime/hint_sender.py",
        "            self._send(started)  # over",
        "            pass  # over",
        "tests/runtime/hints/test_channel.py::test_what_is_not_answered_is_sent_again",
    ),
    mutant(
        "payload that is not checked at its run",
        "A handler is given nothing that is not of its payload's type.",
        "tasks_app/domain/tasks/payload_type.py",
        "        return self._adapter.validate_json(text)\n",
        "        return json.loads(text)\n",
        "tests/domain/test_payload_type.py::test_a_row_of_another_shape_is_refused_at_the_run",
    ),
    mutant(
        "payload that is read as another value",
        "A handler gets what its producer gave, or the create is refused.",
        "tasks_app/domain/tasks/payload_type.py",
        "        if wanted is not _AS_WRITTEN:\n",
        "        if wanted is None:\n",
        "tests/domain/test_payload_type.py::test_what_would_be_read_as_another_value_is_refused",
    ),
    mutant(
        "verb whose statements commit one by one",
        "On a connection with autocommit a verb is one transaction.",
        "tasks_app/runtime/db/connections.py",
        "    with caller.transaction() if caller.autocommit else nullcontext():\n"
        "        yield on_psycopg(",
        "    with nullcontext():\n        yield on_psycopg(",
        "tests/runtime/db/test_connections.py::test_with_autocommit_a_verb_is_one_transaction",
    ),
)
