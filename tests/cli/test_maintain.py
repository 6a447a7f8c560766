"""``maintain`` from the shell."""

from __future__ import annotations

import json

from tests.cli.shell import Shell


def test_tables_and_indexes_are_listed_with_what_they_waste(shell: Shell) -> None:
    shown = shell("maintain", "--all")
    all_of_them = json.loads(shell("maintain", "--all", "--json").stdout)
    assert shown.stdout.splitlines()[0].split()[:3] == ["name", "table", "kind"]
    assert {"task_pending", "task_pending_pkey"} <= {each["name"] for each in all_of_them}
    assert {each["kind"] for each in all_of_them} == {"table", "index"}


def test_where_little_is_wasted_it_lists_nothing_and_rewrites_nothing(shell: Shell) -> None:
    nothing = "Nothing wastes a megabyte. To list all: tasks-app maintain --all\n"
    assert shell("maintain").stdout == nothing
    assert json.loads(shell("maintain", "--json").stdout) == []
    assert shell("maintain", "--reindex").stdout == (
        "0 indexes rebuilt. None wastes more than half and 10 MB.\n"
    )


def test_a_named_index_is_written_anew(shell: Shell) -> None:
    done = shell("maintain", "--reindex", "--index", "task_limit_pkey")
    assert done.returncode == 0
    assert done.stdout.startswith("task_limit_pkey: ")
    assert done.stdout.endswith("1 index rebuilt.\n")


def test_what_makes_no_sense_is_refused_in_words(shell: Shell) -> None:
    unknown = shell("maintain", "--reindex", "--index", "no_such_index")
    alone = shell("maintain", "--index", "task_limit_pkey")
    assert (unknown.returncode, alone.returncode) == (2, 2)
    assert "tasks_app has no index no_such_index" in unknown.stderr
    assert "--index goes with --reindex" in alone.stderr
