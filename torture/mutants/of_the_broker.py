"""The Celery edge without one of its rules."""

from __future__ import annotations

from torture.mutants.change import mutant

LIMITS = "tests/broker/test_pool_limits.py::test_"
SETTINGS = "tests/broker/test_celery_settings.py::test_"

BROKER = (
    mutant(
        "Celery's limits stay on the pool",
        "A time limit of Celery bounds a task, never a message of many.",
        "tasks_app/broker/time_limits.py",
        "    worker.soft_time_limit = worker.time_limit = None\n",
        "",
        f"{LIMITS}of_celerys_limit_and_ours_the_shorter_holds_for_a_task",
    ),
    mutant(
        "settings of Celery's tasks reach our messages",
        "Nothing that is set for Celery's tasks is meant for what carries ours.",
        "tasks_app/broker/tasks.py",
        "    from_config = ()\n",
        "",
        f"{SETTINGS}no_message_feels_a_time_limit",
    ),
    mutant(
        "annotations reach our messages",
        "Nothing that is set for Celery's tasks is meant for what carries ours.",
        "tasks_app/broker/tasks.py",
        "    def annotate(cls) -> None:",
        "    def annotated(cls) -> None:",
        f"{SETTINGS}no_message_of_ours_feels_what_is_neutralised",
    ),
    mutant(
        "remote control sets a limit of a message",
        "Remote control cannot bound what carries many tasks.",
        "tasks_app/broker/control.py",
        '    ways |= {"time_limit": _for_others, "rate_limit": _for_others}\n',
        "",
        f"{SETTINGS}the_remote_commands_that_are_refused_are_for_our_messages",
    ),
    mutant(
        "a message is read before its kind is known",
        "Nothing but JSON is read, whatever accept_content lets in.",
        "tasks_app/broker/refusal.py",
        "    if message.content_type != JSON or not (is_name",
        "    if not (is_name",
        f"{SETTINGS}what_is_no_json_is_not_even_read",
    ),
    mutant(
        "a sprint knows no default limit",
        "TASKS_APP_TIMEOUT bounds the shortest tasks, too.",
        "tasks_app/runtime/sprint.py",
        "or allowance.limit_s(spec))",
        "or spec.timeout)",
        "tests/runtime/test_sprint.py::test_a_limit_for_all_holds_within_a_row",
    ),
)
