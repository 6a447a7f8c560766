"""The connection of a run, each time without one of its rules."""

from __future__ import annotations

from dev.torture.mutants.change import Change, mutant

CONNECTIONS = "tasks_app/runtime/handler_db/handler_connections.py"
DRIVER = "tasks_app/runtime/handler_db/handler_driver.py"
END = "tasks_app/runtime/handler_db/ends.py"
SESSION = "tasks_app/pool/connection/sessions.py"
ODD = "tests/runtime/handler_db/test_handler_connections.py::test_"
MEETS = f"{ODD}the_next_run_meets_no_leftovers"
SNAPSHOT = f"{ODD}a_run_in_a_snapshot_outlives_renewals"
FORBIDDEN = (
    "tests/runtime/ends/test_contract.py::"
    "test_what_is_forbidden_fails_alone_and_leaves_nothing[plain]"
)
EFFECTS = "tests/runtime/test_effects.py::"

RUNS = (
    mutant(
        "settings are taken back behind the settle",
        "The settle meets no role and no search_path of a handler.",
        END,
        "        for name in before:\n            self._send_ours(name)\n",
        "",
        f"{MEETS}[False-session-role]",
        f"{MEETS}[False-driver-path]",
        also=(
            Change(
                END,
                "        self._send_ours(COMMIT)\n",
                "        for name in before:\n            self._send_ours(name)\n"
                "        self._send_ours(COMMIT)\n",
            ),
        ),
    ),
    mutant(
        "BEGIN is sent whatever its transaction is to be",
        "A run chooses how its transaction begins.",
        "tasks_app/runtime/handler_db/handler_driver.py",
        " or self.read_only or self.deferrable\n",
        "\n",
        FORBIDDEN,
    ),
    mutant(
        "nothing is taken back at an end",
        "A run meets no setting of the one before it.",
        END,
        ' | {b"tasks_app resets %d" % n: s for n, s in enumerate(RESETS)}',
        "",
        f"{MEETS}[False-session-function]",
        f"{MEETS}[False-async-second]",
    ),
    mutant(
        "settings are taken back before deferred triggers",
        "A deferred trigger sees what its run has set.",
        END,
        'UNDOING = {b"tasks_app fires": FIRE} | '
        '{b"tasks_app resets %d" % n: s for n, s in enumerate(RESETS)}',
        'UNDOING = {b"tasks_app resets %d" % n: s for n, s in enumerate(RESETS)} | '
        '{b"tasks_app fires": FIRE}',
        f"{ODD}a_deferred_trigger_sees_its_runs_set[sync-False]",
    ),
    mutant(
        "a member's settings are taken back before deferred triggers",
        "A deferred trigger sees what its run has set.",
        SESSION,
        'FIRE_AND_RESET = FIRE + b"; " + RESET',
        "FIRE_AND_RESET = RESET",
        f"{ODD}a_deferred_trigger_sees_its_runs_set[sync-True]",
        f"{ODD}a_deferred_trigger_sees_its_runs_set[async-True]",
    ),
    mutant(
        "what stays in a session stays",
        "A session in which a run left something is closed.",
        END,
        "            self.is_spoiled = True\n        self.needs_check",
        "            pass\n        self.needs_check",
        f"{MEETS}[False-session-temp]",
        f"{MEETS}[False-async-listen]",
    ),
    mutant(
        "a connection of dblink goes on to the next run",
        "What no look finds is told by its words.",
        DRIVER,
        "self.is_spoiled = self.is_spoiled or stays_in_session(statement)",
        "self.is_spoiled = self.is_spoiled",
        "tests/runtime/handler_db/test_connection_liveness.py::test_a_connection_is_lent_again_only_as_it_was",
    ),
    mutant(
        "a connection outlives its run",
        "What a run kept of its connection writes into no later run.",
        DRIVER,
        "        self.pgconn = NO_CONNECTION\n",
        "",
        f"{ODD}what_a_run_kept_writes_into_no_later_run",
        also=(
            Change(
                DRIVER,
                "        if self._over or self._owner not in {None, self._me()}:\n",
                "        if False:\n",
            ),
        ),
    ),
    mutant(
        "nobody looks whether a transaction was ended",
        "Who ends the transaction by any way has failed, for what he wrote may stand.",
        DRIVER,
        "            self.ended = True\n        self._was_open",
        "            pass\n        self._was_open",
        f"{ODD}an_end_past_our_cursors_is_seen",
    ),
    mutant(
        "what begins a transaction cannot end it",
        "The first statement may end the transaction that it began.",
        DRIVER,
        "was_open = before != _IDLE or self._began",
        "was_open = before != _IDLE",
        f"{ODD}an_end_past_our_cursors_is_seen",
    ),
    mutant(
        "who ends a transaction and begins another is not seen",
        "What a string of statements did is told by the tags of its results.",
        DRIVER,
        "if unseen or tags & ENDING_TAGS or (answered",
        "if unseen or (answered",
        f"{ODD}who_ends_the_transaction_behind_a_quote_fails_once_and_for_all",
    ),
    mutant(
        "the end of a transaction is not refused by its words",
        "What is refused leaves nothing behind.",
        DRIVER,
        "            if ends_transaction(statement):\n",
        "            if False:\n",
        FORBIDDEN,
    ),
    mutant(
        "statements that commit by themselves",
        "AUTOCOMMIT is refused.",
        CONNECTIONS,
        "        if value:\n            raise RuntimeError(COMMITS_LATER)\n        super()",
        "        super()",
        FORBIDDEN,
    ),
    mutant(
        "anybody may commit",
        "COMMIT is the executor's.",
        DRIVER,
        "            self.refused = True\n            raise RuntimeError(COMMITS_LATER)\n",
        "            return RunEnd()\n",
        f"{EFFECTS}TestNobodyElseCommits::test_connection_commit",
        "tests/runtime/ends/test_contract.py::"
        "test_effects_stand_if_and_only_if_the_outcome_does[async-group]",
    ),
    mutant(
        "who swallows a refusal succeeds",
        "SQLAlchemy rolls back behind a COMMIT that was refused: so its run has failed.",
        DRIVER,
        "        if self.refused:\n            raise RuntimeError(COMMITS_LATER)\n",
        "",
        f"{ODD}who_swallows_that_a_commit_was_refused_loses_nothing_unseen",
    ),
    mutant(
        "only SQLAlchemy knows whether a run did something",
        "libpq says whether a transaction is open, regardless of who began it.",
        DRIVER,
        "        return self.needs_check and self.pgconn.transaction_status != _IDLE",
        "        return False",
        f"{ODD}writes_by_any_way_stand_if_the_run_succeeds",
    ),
    mutant(
        "a session rolls back what it wrote itself",
        "A rollback is one of all that was written, by whatever way.",
        "tasks_app/runtime/handler_db/handler_sessions.py",
        "            driver_of(connection).rollback()\n",
        "",
        f"{ODD}a_sessions_rollback_takes_back_what_was_written_by_any_way",
    ),
    mutant(
        "a snapshot that was chosen by options is not guarded",
        "The row of a run with a snapshot is locked, or a renewal would make its settle fail.",
        DRIVER,
        "        if self._began and self.isolation_level in _SNAPSHOTS:\n",
        "        if False:\n",
        f"{SNAPSHOT}[choose_by_options]",
        f"{SNAPSHOT}[choose_by_session]",
    ),
    mutant(
        "a snapshot that was chosen by words is not guarded",
        "The row of a run with a snapshot is locked, or a renewal would make its settle fail.",
        DRIVER,
        "            if result.get_value(0, 0) in _SNAPSHOT_NAMES:\n",
        "            if not result:\n",
        f"{SNAPSHOT}[choose_by_words]",
    ),
)
