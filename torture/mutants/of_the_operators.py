"""What operators and surroundings meet: commands, secrets, settings; each without one rule."""

from __future__ import annotations

from torture.mutants.change import mutant

GROUP = "tasks_app/cli/group.py"
ARGUMENTS = "tests/cli/test_arguments.py::"

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
        "tasks_app/cli/stack.py",
        """$(tasks-app urls{_option(folder)})" &&""",
        """$(tasks-app urls)" &&""",
        "tests/cli/test_commands.py::test_up_urls_down_in_a_folder",
    ),
    mutant(
        "payload: large floats",
        "A float is read again as a float, however large it is.",
        "tasks_app/domain/payload.py",
        """return f"\\0{int(value)}.0" if""",
        """return int(value) if""",
        "tests/domain/test_payload.py::"
        "test_every_finite_float_is_written_without_loss_and_without_an_exponent_that_jsonb_rounds",
    ),
)
