"""Commands tell of successes that left no row where they would show them."""

from __future__ import annotations

from sqlalchemy import Engine

from tests.cli.shell import Shell
from tests.pool.test_statistics import left_no_row

WORDS = (
    "1,200 tasks of sync.price, mail succeeded in the last 30 days and left no row, as their "
    "history setting says; the counters include them."
)


def test_commands_tell(engine: Engine, shell: Shell) -> None:
    with engine.begin() as connection:
        left_no_row(connection, 1_190)
        left_no_row(connection, 10, "mail")
    for words in (
        ["list"],
        ["list", "--json"],
        ["list", "--state", "succeeded"],
        ["list", "--pool", "completed"],
        ["stats"],
        ["stats", "--json"],
    ):
        assert WORDS in shell(*words).stderr
    assert "1,190 tasks of sync.price succeeded" in shell("list", "--name", "sync.price").stderr
    assert shell("list", "--state", "failed").stderr == ""
    for words in (["show", "7"], ["show", "7", "--trail"]):
        assert "There is no task 7. 1,200 tasks of" in shell(*words).stderr
    assert "It may have left no row. 1,200 tasks of" in shell("explain", "7").stdout
