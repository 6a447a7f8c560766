"""What a masked path holds is in its handler and its row, and nowhere that people look."""

from __future__ import annotations

import json
from secrets import token_hex
from typing import Any

from tasks_app import TaskContext
from tasks_app.broker.events.writer import shown
from tasks_app.domain.tasks.masks import Masks
from tasks_app.pool.runs.claim_sql import PAYLOADS_UP_TO
from tests.runtime.bench import Bench

CANARY, RULES = "canary-4711", "card.number,t:token_of.**"
PAYLOAD = {"card": {"number": CANARY, "owner": "Ann"}}


def quoting(bench: Bench, **options: Any) -> None:
    @bench.handler("t", max_attempts=1, **options)
    def run(ctx: TaskContext, payload: dict[str, Any]) -> None:
        bench.runs.append(payload)
        raise ValueError(f"{payload['card']['number']} of {payload['card']['owner']} is refused")


def test_no_error_text_quotes_it_wherever_it_is_stored(bench: Bench) -> None:
    quoting(bench)
    task_id = bench.create(payload=PAYLOAD)
    bench.execute([task_id], masked_paths=RULES)

    assert bench.runs == [PAYLOAD]
    assert bench.attempts(task_id)[0].message == "*** of Ann is refused"
    for table in ("task_attempt", "task_fingerprint", "task_transition", "task_log"):
        assert CANARY not in str(bench.sql(f"SELECT json_agg(x)::text FROM {table} x"))
    assert CANARY not in str(bench.sql("SELECT error FROM task_error"))


def test_of_a_payload_that_was_too_large_to_be_claimed_no_text_is_kept(bench: Bench) -> None:
    quoting(bench)
    task_id = bench.create(payload={**PAYLOAD, "long": token_hex(PAYLOADS_UP_TO)})
    bench.execute([task_id], masked_paths=RULES)

    assert bench.attempts(task_id)[0].message == "***"


def test_flower_is_not_shown_it() -> None:
    given = shown("payload", json.dumps(PAYLOAD), ("card",), "t", Masks(RULES))
    assert CANARY not in str(given)
    assert "Ann" in str(given)
