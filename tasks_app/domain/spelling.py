"""What was perhaps meant by a word that nobody knows."""

from __future__ import annotations

from collections.abc import Collection, Iterable

ELSEWHERE = {
    **dict.fromkeys(("countdown", "delay_seconds", "schedule_in"), "delay"),
    **dict.fromkeys(("eta", "scheduled_at", "at", "execute_at", "due_at"), "run_at"),
    **dict.fromkeys(("expires", "expire_at", "deadline"), "expires_at"),
    **dict.fromkeys(("max_retries", "retries", "attempts", "max_tries"), "max_attempts"),
    **dict.fromkeys(("default_retry_delay", "retry_delay", "backoff", "retry_policy"), "retry"),
    **dict.fromkeys(("retry_backoff", "retry_intervals"), "retry"),
    **dict.fromkeys(("soft_time_limit", "job_timeout"), "timeout"),
    **dict.fromkeys(("time_limit", "kill_after"), "hard_timeout"),
    **dict.fromkeys(("task_id", "job_id", "queueing_lock", "dedup_key"), "unique_key"),
    **dict.fromkeys(("routing_key", "queue_name"), "queue"),
    "autoretry_for": "on_error",
    "acks_late": "at_most_once",
    "lock": "order_key",
}
"""What other systems call it."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is most like it; None: none is."""
    return next(iter(_near(word, known)), None)


def similar(word: str, known: Iterable[str]) -> str:
    """Return a clause such as ``; similar: mail.send``; empty: none of them is like it."""
    near = _near(word, known)
    return f"; similar: {', '.join(near)}" if near else ""


def _near(word: str, known: Iterable[str]) -> list[str]:
    import difflib  # noqa: PLC0415  only for what is wrong

    return difflib.get_close_matches(word, sorted(known))


def meant(word: str, known: Collection[str]) -> str:
    """Return a clause such as ``; perhaps delay is meant``; empty: none of them is like it."""
    elsewhere = ELSEWHERE.get(word)
    near = elsewhere if elsewhere in known else nearest(word, known)
    return f"; perhaps {near} is meant" if near else ""
