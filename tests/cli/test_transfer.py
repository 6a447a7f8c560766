"""``export``, ``import`` and ``cancel-moved`` from the shell; here the move ends where it began."""

from __future__ import annotations

import json
from pathlib import Path

from sqlalchemy import Engine, text

from tests.cli.shell import Shell
from tests.runtime.api.acts import make


def test_a_move_at_the_shell(shell: Shell, engine: Engine, tmp_path: Path) -> None:
    ids = make(engine, 2)
    shell("hold", *map(str, ids))
    exported = shell("export", "tasks.jsonl", "--held")
    with engine.begin() as connection:  # as another database, which lacks them
        kept = connection.execute(text("DELETE FROM task_pending RETURNING idempotency_key")).all()
    imported = shell("import", "tasks.jsonl")
    again = shell("import", "tasks.jsonl", "--receipt", "again", "--json")
    refused = shell("import", "tasks.jsonl")
    left = shell("cancel-moved", "tasks.jsonl.moved")

    assert exported.stdout == "2 tasks exported to tasks.jsonl\n"
    assert imported.stdout == "2 tasks of tasks.jsonl here: tasks.jsonl.moved says which\n"
    receipt = (tmp_path / "tasks.jsonl.moved").read_text()
    lines = [json.loads(line) for line in receipt.splitlines()]
    assert [line["id"] for line in lines] == ids
    assert len(kept) == 2
    assert json.loads(again.stdout) == {"tasks": 2, "left_out": []}
    assert (tmp_path / "again").read_text() == receipt
    assert "tasks.jsonl.moved exists already" in refused.stderr
    assert (left.returncode, left.stdout) == (1, "0 tasks cancelled\n")
    assert f"2 left alone, not held here or gone: {ids[0]} {ids[1]}" in left.stderr


def test_what_makes_no_sense_is_refused_in_words(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("{}\n")

    everything = shell("export", "tasks.jsonl")
    there = shell("export", "there", "--name", "t")
    none = shell("import", "no_such_file")
    other = shell("import", "there")
    dash = shell("export", "-", "--name", "t")
    nowhere = shell("export", "no/folder/tasks.jsonl", "--name", "t")

    assert "This selects every task" in everything.stderr
    assert "there exists already" in there.stderr
    assert "no_such_file cannot be read" in none.stderr
    assert "Line 1 is not a task" in other.stderr
    assert "cannot be written" in nowhere.stderr
    assert "it holds payloads" in dash.stderr
    assert not (tmp_path / "-").exists()
    for answer in (everything, there, none, other, nowhere, dash):
        assert answer.returncode == 2
        assert "Traceback" not in answer.stderr
