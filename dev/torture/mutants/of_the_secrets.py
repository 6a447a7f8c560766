"""What keeps a secret, and what brings a task back whose key was missing; each without one rule."""

from __future__ import annotations

from dev.torture.mutants.change import mutant

RUNS = "tests/runtime/encryption/test_runs.py::"
MISSING = "tests/runtime/encryption/test_rotation.py::"
INVOCATION = "tasks_app/runtime/execution/invocation.py"
SECRECY = "tasks_app/runtime/execution/invocation.py"
ERASE = "tests/runtime/test_erasure.py::"

SECRETS = (
    mutant(
        "secrets: bound",
        "A token opens only as its own kind of value, of a task of its name.",
        "tasks_app/domain/encryption.py",
        'return "\\0".join((TOKEN_VERSION, key_id, kind, name)).encode()',
        'return "\\0".join((TOKEN_VERSION, key_id)).encode()',
        "tests/domain/test_durations.py::test_a_token_opens_only_as_its_own_kind_and_name",
    ),
    mutant(
        "secrets: result",
        "The result of an encrypted task is encrypted.",
        INVOCATION,
        "if secret and result is not None:",
        "if secret and result == '':",
        f"{RUNS}test_payload_and_result_are_encrypted_where_the_setting_says_so",
    ),
    mutant(
        "secrets: error",
        "The text of an exception of an encrypted task is encrypted.",
        "tasks_app/runtime/execution/completion.py",
        "        if self._invocation.secrecy.covers(task, spec):\n            cause =",
        "        if spec.encrypted:\n            cause =",
        f"{RUNS}test_an_error_is_its_class_and_place",
    ),
    mutant(
        "secrets: large",
        "It is known of a large payload, too, that it is encrypted.",
        SECRECY,
        "run.task = run.task._replace(payload=text)",
        "assert run",
        f"{RUNS}test_an_error_is_its_class_and_place",
    ),
    mutant(
        "secrets: still",
        "Who was encrypted has an encrypted result, whatever is said now.",
        SECRECY,
        "if spec.encrypted or token_in(task.payload) is not None:",
        "if spec.encrypted:",
        f"{RUNS}test_results_of_encrypted_tasks_stay_encrypted",
    ),
    mutant(
        "secrets: handed in",
        "Nobody is given what a stored value holds by handing it in as a payload.",
        "tasks_app/domain/creation.py",
        "        check_no_token(text)\n",
        "        assert text\n",
        f"{RUNS}test_a_stored_value_is_nobodys_payload",
    ),
    mutant(
        "secrets: retry",
        "The payload for the next attempt is encrypted.",
        "tasks_app/runtime/execution/completion.py",
        "payload = self._invocation.secrecy.new_payload(payload, task.name)",
        "assert payload",
        f"{RUNS}test_a_payload_for_the_next_attempt_is_encrypted",
    ),
    mutant(
        "secrets: no key",
        "A handler whose result could not be encrypted does not begin.",
        SECRECY,
        "if secret and not self._encryption.has_key():",
        "if self._encryption is None:",
        f"{MISSING}test_a_handler_that_is_to_be_encrypted_does_not_begin_without_any_key",
    ),
    mutant(
        "secrets: due",
        "Who waits for a key stays due since when he was.",
        "tasks_app/pool/runs/leases.py",
        "due_at = least(due_at, CAST(:due_at AS timestamptz)),",
        "due_at = greatest(due_at, CAST(:due_at AS timestamptz)),",
        f"{MISSING}test_it_is_parked_with_the_reason",
    ),
    mutant(
        "secrets: rotation",
        "A rotation replaces a value only while it is as it was read.",
        "tasks_app/pool/operations/encrypted_values.py",
        "AND {place.value} = g.old",
        "AND g.old IS NOT NULL",
        "tests/runtime/encryption/test_rotation.py::"
        "test_a_value_changed_meanwhile_is_not_overwritten",
    ),
    mutant(
        "secrets: settings",
        "Settings show of keys their ids alone.",
        "tasks_app/domain/config/setting_sources.py",
        'case SecretStr() if name == "encryption_keys":',
        'case SecretStr() if name == "encryption_key":',
        "tests/runtime/encryption/test_keys.py::test_settings_show_ids_alone",
    ),
    mutant(
        "erase: requeued",
        "A task whose payload was erased does not reach its handler.",
        SECRECY,
        "if is_erased(text):",
        "if not text:",
        f"{ERASE}test_an_erased_task_requeued_reaches_no_handler",
    ),
    mutant(
        "erase: open bulk",
        "The patch of a bulk that goes on stays, or it would change payloads as it stands.",
        "tasks_app/pool/operations/erase.py",
        "AND NOT {_OPEN}\n",
        "\n",
        f"{ERASE}test_what_operators_typed_about_it_goes_but_not_of_a_bulk_that_goes_on",
    ),
    mutant(
        "erase: callbacks",
        "No callback brings back what was erased.",
        "tasks_app/runtime/erasure.py",
        "rows.erase_callbacks(connection, whose, open_too=cancel)",
        "len(whose.biz_keys)",
        f"{ERASE}test_a_callback_is_left_or_skipped_and_brings_nothing_back",
    ),
    mutant(
        "erase: late lines",
        "Log lines that come after the end of a run do not come after its erasure.",
        "tasks_app/pool/tasks/run_records.py",
        "    WHERE l.lines <> '[]'\"",
        '"',
        f"{ERASE}test_log_lines_that_come_late_are_not_kept",
    ),
    mutant(
        "erase: told",
        "An erasure is complete only if it met all that was meant.",
        "tasks_app/runtime/erasure.py",
        "receipt.running += len(set(meant.over) - done)",
        "receipt.running += 0",
        f"{ERASE}test_what_comes_back_meanwhile_is_told",
    ),
    mutant(
        "masks: errors",
        "No error text that is stored quotes a masked value.",
        "tasks_app/runtime/execution/completion.py",
        "cause = self._masked(error, task)",
        "cause = cause_of(error)",
        "tests/runtime/encryption/test_keys.py::test_no_error_text_quotes_it_wherever_it_is_stored",
    ),
    mutant(
        "masks: server",
        "Nothing is stored of what a database adds to a text, whose values it cuts.",
        "tasks_app/runtime/execution/completion.py",
        "text = without_row_details(cause.message, error)",
        "text = cause.message",
        "tests/runtime/encryption/test_keys.py::test_nothing_is_stored_of_what_the_database_cut",
    ),
    mutant(
        "masks: readers",
        "No command shows a masked value.",
        "tasks_app/runtime/encryption/values.py",
        "else rules.value(task.name, value)",
        "else value",
        "tests/cli/test_hidden_values.py::test_show_and_list_hide_it_and_older_errors_that_quote_it",
    ),
    mutant(
        "masks: older texts",
        "No command shows a text that was stored before the rule.",
        "tasks_app/runtime/api/tasks.py",
        "    if rules and found:",
        "    if rules and not found:",
        "tests/cli/test_hidden_values.py::test_texts_that_were_stored_before_the_rule_are_hidden_too",
    ),
)
