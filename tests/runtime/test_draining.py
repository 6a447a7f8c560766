"""A worker that is asked to stop: its children start nothing more."""

from __future__ import annotations

from typing import Any

from tests.runtime.bench import Bench


def test_what_has_not_started_goes_back_uncharged_when_the_parent_drains(bench: Bench) -> None:
    started = []

    @bench.handler("t")
    def t(ctx: Any) -> None:
        started.append(ctx.task_id)
        bench.slots.drain()

    ids = [bench.create() for _ in range(25)]

    bench.execute(ids, dispatch_id=None)

    assert len(started) == 1
    assert sorted(bench.states(ids)) == ["PENDING"] * 24 + ["SUCCEEDED"]
    assert {bench.task(i).failures + bench.task(i).crashes for i in ids} == {0}
