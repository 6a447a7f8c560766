"""What operators and surroundings meet: commands, secrets, settings; each without one rule."""

from __future__ import annotations

from dev.torture.mutants.change import Change, mutant

GROUP = "tasks_app/cli/group.py"
ARGUMENTS = "tests/cli/test_arguments.py::"
DATABASE = "tasks_app/runtime/db/database.py"
ODD = "tests/runtime/db/test_odd_settings.py::"
WALK = f"{ODD}test_a_task_walks_its_way_under_all_odd_settings_at_once"
LOG = "tests/runtime/tracing/test_attempt_log.py::"
EXPLAIN = "tests/pool/operations/test_explain.py::"
SECRETS = "tests/broker/test_config.py::"
TRANSFER = "tasks_app/pool/tasks/transfer.py"
MOVES = "tests/runtime/test_transfer.py::test_"
SCHEMA = "tasks_app/pool/schema.py"
VERSIONS = "tests/pool/test_schema.py::"
MIGRATION = "tests/runtime/test_migration.py::"

OPERATORS = (
    mutant(
        "commands: empty values",
        "An empty variable of the shell takes no filter away.",
        GROUP,
        "        _refuse_empty(args)\n",
        "",
        f"{ARGUMENTS}test_an_empty_shell_variable_never_widens_what_is_meant",
        f"{ARGUMENTS}test_the_value_of_no_option_of_no_command_may_be_empty",
    ),
    mutant(
        "commands: streams",
        "No character that a terminal lacks ends a command.",
        GROUP,
        "        _open_streams()\n",
        "",
        f"{ARGUMENTS}test_every_command_prints_whatever_the_terminal_knows",
    ),
    mutant(
        "up: folder",
        "The next command finds the servers that were just started.",
        "tasks_app/cli/servers.py",
        """$(tasks-app urls{_option(folder)})"'""",
        """$(tasks-app urls)"'""",
        "tests/cli/test_commands.py::test_up_urls_down_in_a_folder",
    ),
    mutant(
        "payload: large floats",
        "A float is read again as a float, however large it is.",
        "tasks_app/domain/tasks/payload_checks.py",
        'return f"\\0{int(value)}.0"',
        "return int(value)",
        "tests/domain/test_payload.py::"
        "test_every_finite_float_is_written_without_loss_and_without_an_exponent_that_jsonb_rounds",
    ),
    mutant(
        "settings: styles of our engines",
        "What a role says of IntervalStyle does not reach our statements.",
        "tasks_app/runtime/db/database.py",
        """    "IntervalStyle": "postgres",\n""",
        "",
        f"{WALK}[0]",
    ),
    mutant(
        "settings: encoding",
        "What a role says of client_encoding does not decide which text there is.",
        "tasks_app/runtime/db/database.py",
        """    "client_encoding": "utf8",""",
        "   ",
        f"{WALK}[1]",
    ),
    mutant(
        "settings: handlers can read",
        "Handlers, ours for steps of a batch among them, read instants whatever a role says.",
        DATABASE,
        "            _keep_readable(self._handler_engine)\n",
        "",
        f"{WALK}[0]",
    ),
    mutant(
        "settings: sessions of others",
        "What others let us read in their sessions can be read, whatever their styles are.",
        "tasks_app/runtime/db/connections.py",
        "    make_readable(connection)\n",
        "",
        f"{WALK}[0]",
    ),
    mutant(
        "settings: read only",
        "Who may only read is told so.",
        "tasks_app/pool/schema.py",
        'if connection.execute(text("SHOW transaction_read_only")).scalar() == "on":',
        "if False:",
        f"{ODD}test_a_read_only_role_is_told_in_a_sentence",
    ),
    mutant(
        "versions: too new",
        "Code does not run on a schema that says that it may not.",
        SCHEMA,
        "if oldest is None or needed < oldest:",
        "if oldest is None:",
        f"{VERSIONS}test_a_schema_too_new_calls_the_code_old",
    ),
    mutant(
        "migrations: indexes",
        "Nobody waits while an index is built.",
        "tasks_app/pool/schema.py",
        "if context.as_sql or ",
        "if True or ",
        f"{MIGRATION}test_an_index_is_built_beside_writes",
    ),
    mutant(
        "migrations: what is invalid",
        "An index that a killed migration left is built again.",
        "tasks_app/pool/schema.py",
        "if op.get_bind().execute(_IS_INVALID",
        "if False and op.get_bind().execute(_IS_INVALID",
        f"{MIGRATION}test_what_was_killed_is_simply_run_again",
    ),
    mutant(
        "migrations: in turn",
        "Two that migrate at once do not meet in one migration.",
        "tasks_app/runtime/migration.py",
        "            schema.lock_migrations(turn, say, refused=turn.rollback)\n",
        "",
        f"{MIGRATION}test_a_second_one_waits_alone",
    ),
    mutant(
        "alembic: another schema",
        "A table of somebody else's is his, whatever its name.",
        "tasks_app/alembic.py",
        "return (schema or default) == (SCHEMA or default)",
        "return bool(default)",
        "tests/deployment/test_package.py::test_in_a_schema_of_its_own_only_ours_is_left_alone",
    ),
    mutant(
        "secrets: broker URLs",
        "A broker's URL that cannot be read reaches nobody who would tell its parts.",
        "tasks_app/domain/config/field_types.py",
        "not is_broker_url(url)",
        "False",
        f"{SECRETS}test_no_password_of_a_broker_url_is_shown_or_told_by_celery",
    ),
    mutant(
        "secrets: malformed URLs",
        "Of what is no URL nothing is shown.",
        "tasks_app/domain/config/setting_sources.py",
        "            urls[place] = MASK\n",
        "            urls[place] = url\n",
        "tests/domain/test_config.py::test_of_what_is_no_url_nothing_is_shown",
    ),
    mutant(
        "grants: columns",
        "A producer's role reads no payload and no lease token.",
        "tasks_app/pool/operations/grants.py",
        '_CREATE = f"SELECT ({_STANDING}), INSERT ON {t.PENDING}"',
        '_CREATE = f"SELECT, INSERT ON {t.PENDING}"',
        "tests/pool/operations/test_grants.py::test_a_role_may_do_its_own",
    ),
    mutant(
        "logs: values of payloads",
        "No value of a payload is in a line of a worker's log.",
        "tasks_app/runtime/tracing/run_logs.py",
        "text = exception_text(cause, notice.payload) if cause",
        'text = f"{cause.kind}: {cause.message}" if cause',
        f"{LOG}test_payloads_values_are_in_no_line",
    ),
    mutant(
        "logs: storms",
        "A storm of failures fills no disk.",
        "tasks_app/runtime/tracing/run_logs.py",
        "            if place <= IN_FULL:\n",
        "            if place:\n",
        f"{LOG}test_of_a_storm_the_first_are_said_and_the_others_counted",
    ),
    mutant(
        "probes: projects",
        "A probe of one project does not answer for another of the same user.",
        "tasks_app/runtime/startup.py",
        'f"{crc32(found.encode()):08x}" if found',
        '"all" if found',
        "tests/runtime/test_health_files.py::test_projects_do_not_see_each_other",
    ),
    mutant(
        "producers: a missing schema",
        "A producer whose schema is missing reads a sentence, and none of its payload.",
        "tasks_app/pool/connection/execute.py",
        "        schema_error = _schema_error(error)\n        if not schema_error:\n"
        "            raise\n    raise SchemaError(schema_error)  # outside",
        "        raise\n    raise SchemaError(schema_error)  # outside",
        "tests/pool/test_schema.py::test_it_is_said_and_the_transaction_failed",
    ),
    mutant(
        "explain: the broker",
        "Who asks while messages do not go out hears that, since when, and why.",
        "tasks_app/domain/explain/waiting.py",
        "(no_worker, no_handler, unpublished, no_scan)",
        "(no_worker, no_handler, no_scan)",
        f"{EXPLAIN}TestWaiting::test_messages_that_do_not_go_out",
    ),
    mutant(
        "explain: a line that nobody leaves",
        "While messages do not go out nobody hears that the next scan finds his task.",
        "tasks_app/domain/explain/waiting.py",
        "line is None or facts.refused_since or facts.no_leader:",
        "line is None or facts.no_leader:",
        f"{EXPLAIN}TestWaiting::test_messages_that_do_not_go_out",
    ),
    mutant(
        "explain: silence",
        "A worker whose heartbeat is missing is not said to run the task.",
        "tasks_app/domain/explain/explanation.py",
        "    if facts.silent or row.lease_until is None",
        "    if row.lease_until is None",
        f"{EXPLAIN}TestRunning::test_silent",
    ),
    mutant(
        "requeue: the same id twice",
        "An id that is given twice is one.",
        "tasks_app/cli/task_actions.py",
        "sorted({*map(check_id, ids)})",
        "sorted(map(check_id, ids))",
        "tests/cli/test_commands.py::test_an_id_that_is_given_twice_is_one",
    ),
    mutant(
        "reindex: what a killed one left",
        "A reindex drops what an earlier one left half done.",
        "tasks_app/runtime/migration.py",
        "dropped = _clean(connection)",
        "dropped: list[str] = []",
        "tests/runtime/test_transfer.py::test_what_a_killed_try_left_half_done_is_dropped",
    ),
    mutant(
        "import: twice is two",
        "A task is brought in once, however often its file is.",
        TRANSFER,
        "if task.idempotency_key not in known}",
        "}",
        f"{MOVES}each_is_created_once_in_many_tries",
        also=[
            Change(TRANSFER, "VALUES (:key, :id)", "VALUES (:key, :id) ON CONFLICT DO NOTHING"),
        ],
    ),
    mutant(
        "import: another key",
        "A task that is moved keeps its idempotency key.",
        TRANSFER,
        "SET idempotency_key = :key, created_at",
        "SET created_at",
        f"{MOVES}a_task_takes_all_its_options_along",
    ),
    mutant(
        "move: what was released is cancelled",
        "Only what is still held is cancelled after a move.",
        TRANSFER,
        "AND {is_held()}\n",
        "\n",
        f"{MOVES}a_move_cancels_only_what_arrived",
    ),
    mutant(
        "move: by the id alone",
        "A receipt cancels the task that it means, not another one with its id.",
        TRANSFER,
        "p.id = k.id AND p.idempotency_key = k.key\n    WHERE p.state",
        "p.id = k.id\n    WHERE p.state",
        f"{MOVES}a_receipt_is_void_in_other_databases",
    ),
    mutant(
        "drain: what came late",
        "What became due while a drain ended was not left by it.",
        "tasks_app/pool/operations/diagnostics.py",
        "p.due_at <= CAST(:since AS timestamptz)",
        "(p.due_at <= statement_timestamp() OR p.due_at <= CAST(:since AS timestamptz))",
        "tests/cli/test_work.py::test_what_becomes_due_while_it_ends_does_not_count_unless_it_is"
        "_parked",
    ),
)
