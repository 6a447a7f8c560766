"""What was idle, what begins late, and a clock that jumps, each without one of its rules."""

from __future__ import annotations

from dev.torture.mutants.change import mutant

LIVENESS = "tasks_app/runtime/handler_db/lending.py"
CALLS = "tasks_app/runtime/execution/invocation.py"
VERDICTS = "tasks_app/runtime/execution/completion.py"
RENEWER = "tasks_app/runtime/worker/housekeeper.py"
RETURNER = "tasks_app/runtime/worker/housekeeper.py"
IDLE = "tests/runtime/handler_db/test_connection_liveness.py::"
FIRST = f"{IDLE}TestTheFirstStatement::"
HANDLERS = "tests/runtime/handler_db/test_handler_connections.py::test_"
LATE = "tests/runtime/execution/test_late_commits.py::"
RESCUER = "tests/runtime/leader/test_rescuer.py::"
INTERNALS = "tests/runtime/handler_db/test_driver_internals.py::"

CONNECTIONS = (
    mutant(
        "statements of ours are compiled",
        "No statement whose plan we force is compiled by a server that has JIT.",
        "tasks_app/pool/connection/sessions.py",
        '    "jit": "off",\n',
        "",
        "tests/runtime/db/test_connections.py::test_our_settings_hold_in_all_that_we_do",
    ),
    mutant(
        "nobody looks at the sockets of idle connections",
        "A connection that was ended while it was idle is not used again.",
        LIVENESS,
        "readable = _is_readable(driver)",
        "readable = False",
        f"{IDLE}test_connections_that_die_while_idle_cost_none",
    ),
    mutant(
        "nobody asks a connection that was idle for long",
        "What was idle for a second is asked, however sound its socket looks.",
        LIVENESS,
        "time.monotonic() - since < IDLE_S",
        "since",
        f"{IDLE}test_a_connection_idle_for_long_is_asked_before_its_use",
    ),
    mutant(
        "a loss is the loss of one engine",
        "What one engine loses, no other lends again.",
        LIVENESS,
        "not readable and since <= losses.used",
        "not readable and since <= losses.used - 1e9",
        f"{IDLE}test_whoever_loses_a_connection_spares_the_others_that_were_idle",
    ),
    mutant(
        "a first statement on a dead connection is a loss",
        "A run that did nothing is run again at once, unsuspected.",
        VERDICTS,
        "(untried and is_lost(error)) or is_stale_plan(error)",
        "is_stale_plan(error)",
        f"{FIRST}test_a_run_that_did_nothing_runs_again",
    ),
    mutant(
        "a table that was altered charges who prepared a statement before",
        "What others did to a run's transaction is not charged.",
        VERDICTS,
        "(untried and is_lost(error)) or is_stale_plan(error)",
        "untried and is_lost(error)",
        f"{HANDLERS}a_table_altered_behind_a_prepared_statement_charges_none[connection]",
    ),
    mutant(
        "a role's limit for locks is charged",
        "What others did to a run's transaction is not charged.",
        VERDICTS,
        " or self._was_hurried(end.spec, error)",
        "",
        f"{HANDLERS}a_lock_timeout_not_the_handlers_own_charges_nobody[handler]",
    ),
    mutant(
        "a limit of the handler's own is not charged",
        "A handler that sets a limit is answered by it.",
        VERDICTS,
        "not is_lock_limit(error) or is_under_own_settings(error)",
        "not is_lock_limit(error)",
        f"{HANDLERS}a_limit_for_locks_that_is_the_handlers_own_is_charged",
    ),
    mutant(
        "what may run once is called twice",
        "A handler that was called and may run once is not called again.",
        VERDICTS,
        " or end.run.task.at_most_once:\n            return False\n",
        ":\n            return False\n",
        f"{FIRST}test_at_most_once_is_not_run_again_and_names_no_commit",
        "tests/runtime/ends/test_contract.py::"
        "test_effects_stand_if_and_only_if_the_outcome_does[plain-once]",
    ),
    mutant(
        "every lost connection is an unknown outcome",
        "The outcome is unknown only where a COMMIT was sent.",
        VERDICTS,
        "    if is_of_commit(error):\n",
        "    if is_unanswered(error):\n",
        f"{FIRST}test_at_most_once_is_not_run_again_and_names_no_commit",
    ),
    mutant(
        "no lost connection is an unknown outcome",
        "The outcome is unknown where a COMMIT was sent and not answered.",
        "tasks_app/runtime/db/transaction.py",
        "    setattr(error, _OF_COMMIT, True)\n",
        "",
        f"{IDLE}test_the_outcome_of_an_unanswered_commit_is_unknown",
    ),
    mutant(
        "a payload that was not fetched is a run",
        "What was not called has not run.",
        CALLS,
        "if isinstance(error, LargeStoreError) or is_lost(error):",
        "if isinstance(error, LargeStoreError):",
        f"{IDLE}test_a_payload_that_could_not_be_fetched_is_no_run",
    ),
    mutant(
        "idle connections that died acquit nobody",
        "Who lost its connection when others that were idle died is not suspected.",
        RETURNER,
        "if idle_s <= OUTAGE_GRACE_S:",
        "if idle_s < 0:",
        f"{IDLE}test_losing_a_connection_as_idle_ones_die_is_no_guilt",
    ),
    mutant(
        "what is late begins",
        "Nothing begins when its lease may be over.",
        CALLS,
        "if time.monotonic() >= run.held_until:",
        "if run.held_until < 0:",
        f"{LATE}test_what_was_declared_unknown_does_not_begin_afterwards",
        f"{LATE}test_what_nobody_rescued_runs_again_uncharged",
    ),
    mutant(
        "a lease counts from the answer",
        "A lease counts from when its claim was sent.",
        "tasks_app/runtime/execution/claims.py",
        "began + self._lease.total_seconds())",
        "max(began, time.monotonic()) + self._lease.total_seconds())",
        f"{LATE}test_a_claim_counts_from_when_it_was_sent",
    ),
    mutant(
        "renewals do not count",
        "What was renewed may begin later.",
        RENEWER,
        "            self._inflight.renewed(renewed, held_until)\n",
        "            assert held_until\n",
        f"{LATE}test_who_renews_may_wait_for_longer_than_a_lease",
    ),
    mutant(
        "a clock that jumps ends all leases",
        "When the database's clock jumps forward, workers renew before any rescue.",
        "tasks_app/runtime/leader/rescuer.py",
        "if self.check_clock(tables.database_time(connection, now=now), asked_at):\n",
        "if tables.database_time(connection, now=now) < asked_at:\n",
        f"{RESCUER}TestTheClock::test_workers_renew_first_when_it_jumps_on",
    ),
    mutant(
        "who only looks knows no time",
        "A leader of an idle pool notices a jump of the clock, too.",
        "tasks_app/runtime/leader/leader.py",
        "        self.duties.rescuer.check_clock(seen.at_s, asked_at)\n",
        "        assert asked_at\n",
        "tests/runtime/leader/test_leader.py::test_a_leader_that_only_looked_notices_that_the_clock_jumps",
    ),
    mutant(
        "a psycopg that is not as we know it shares sessions",
        "Where its insides have other names, each run has a session of its own.",
        "tasks_app/runtime/handler_db/lending.py",
        "if spoiled or not SHARED_SESSIONS.works:",
        "if spoiled:",
        f"{INTERNALS}test_each_run_has_a_session_of_its_own",
    ),
    mutant(
        "a psycopg that we cannot see through is taken all the same",
        "Without what shows the end of a transaction no worker starts.",
        "tasks_app/runtime/handler_db/driver_internals.py",
        "if not _NEEDED.works:",
        "if not _NEEDED:",
        f"{INTERNALS}test_a_psycopg_that_cannot_be_seen_through_is_refused_in_one_sentence",
    ),
    mutant(
        "a worker starts with queues that nobody guards",
        "A Celery that would not ask us what a message may start is refused.",
        "tasks_app/broker/worker.py",
        "        check_guard()\n",
        "",
        "tests/broker/test_tasks.py::test_a_worker_that_could_not_guard_its_queues_does_not_start",
    ),
)
