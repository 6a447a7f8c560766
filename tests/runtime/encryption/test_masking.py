"""What a masked path holds is in its handler and its row, and nowhere that people look."""

from __future__ import annotations

import json
import re
from secrets import token_hex
from typing import Any

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from tasks_app import TaskContext
from tasks_app.broker.events import shown
from tasks_app.domain.tasks.masks import Masks
from tasks_app.pool.runs.claim import PAYLOADS_UP_TO
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


LONG = "".join(f"{n:04d}-" for n in range(60))
"""A number longer than what PostgreSQL quotes."""
CUTS = {
    "detail": "INSERT INTO cut VALUES (:card, NULL)",
    "context": "SELECT CAST(:json AS jsonb)",
    "line": "SELECT '{card}' FROM nowhere",
    "raised": """DO $$ BEGIN RAISE 'no' USING DETAIL = left('{card}', 70); END $$""",
}
WRAPPED = {
    "as it is": lambda error: error,
    "the driver's": lambda error: error.orig,
    "quoted": lambda error: ValueError(f"no: {error}"),
    "as code": lambda error: ValueError(repr(error.orig)),
    "its detail": lambda error: ValueError(f"{error.orig.diag.message_detail}"),
    "its context": lambda error: ValueError(f"{error.orig.diag.context}"),
    "group": lambda error: ExceptionGroup(f"{error}", [error]),
}


def test_nothing_is_stored_of_what_the_database_cut(bench: Bench) -> None:
    @bench.handler("t", max_attempts=1)
    def run(ctx: TaskContext, payload: dict[str, Any]) -> None:
        card = payload["card"]["number"]
        values = {"card": card, "json": f'{{"card": "{card}}}'}
        try:
            ctx.session.execute(text(CUTS[payload["cut"]].replace("{card}", card)), values)
        except DBAPIError as error:
            raise WRAPPED[payload["wrapped"]](error) from None

    bench.sql("CREATE TABLE IF NOT EXISTS cut (card text, x int NOT NULL)")
    ids = [
        bench.create(payload={"card": {"number": LONG}, "cut": cut, "wrapped": wrapped})
        for cut in CUTS
        for wrapped in WRAPPED
    ]
    bench.execute(ids, masked_paths=RULES)
    bench.sql("DROP TABLE cut")

    assert set(bench.states(ids)) == {"FAILED"}
    for task_id in ids:
        (attempt,) = bench.attempts(task_id)
        assert not re.search(r"\d\d\d\d-", f"{attempt.message} {bench.task(task_id).error}")
        assert attempt.message


def test_older_texts_are_shown_without_what_the_database_cut() -> None:
    text = f"Error: no null\nDETAIL:  Failing row contains ({LONG[:40]}..., null)."

    assert Masks(RULES).text("t", text, {"card": {"number": LONG}}) == "Error: no null"
