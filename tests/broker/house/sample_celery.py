"""A project of plain Celery that knows nothing of tasks_app. Each task notes what it does.

``key`` tells whose run it is; notes are ``[what, retries]``, in a list of that key.
"""

from __future__ import annotations

import json
import os
import time
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from celery import Celery, Task, shared_task
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from pydantic import BaseModel
from redis import Redis

BROKER, BACKEND = os.environ["SAMPLE_BROKER"], os.environ["SAMPLE_BACKEND"]

app = Celery("sample_celery", broker=BROKER, backend=BACKEND)
app.conf.update(
    task_default_queue="sample",
    broker_transport_options={"global_keyprefix": "sample:"},
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


def note(key: str, what: str, retries: int = -1) -> None:
    Redis.from_url(BACKEND).rpush(f"notes:{key}", json.dumps([what, retries, time.time()]))


@app.task
def add(key: str, x: int, y: int = 1) -> int:
    note(key, "add")
    return x + y


@app.task(bind=True)
def look(self: Task, key: str, **kwargs: Any) -> dict[str, Any]:
    request = self.request
    note(key, "look", request.retries)
    return {
        "id is text": isinstance(request.id, str) and request.id == request.root_id,
        "correlation": request.correlation_id == request.id,
        "retries": request.retries,
        "args": len(request.args),
        "kwargs": request.kwargs,
        "called_directly": request.called_directly,
        "is_eager": request.is_eager,
        "eta": request.eta,
        "routed": bool(request.delivery_info["routing_key"]),
        "hostname": "@" in request.hostname,
        "task": request.task,
        "current": add.app.current_task.name,
        "app": self.app.main,
    }


@app.task(bind=True, default_retry_delay=0)
def twice(self: Task, key: str) -> str:
    note(key, "run", self.request.retries)
    if self.request.retries < 2:
        raise self.retry(exc=ValueError("not yet"))
    return f"after {self.request.retries}"


@app.task(bind=True, max_retries=2)
def hopeless(self: Task, key: str) -> None:
    note(key, "run", self.request.retries)
    raise self.retry(exc=LookupError("never"), countdown=0)


@app.task(bind=True, max_retries=1)
def nameless(self: Task, key: str) -> None:
    """Give up with Celery's exception."""
    note(key, "run", self.request.retries)
    self.retry(countdown=0)


@app.task(bind=True, max_retries=0)
def once(self: Task, key: str) -> None:
    note(key, "run", self.request.retries)
    self.retry(countdown=0, exc=KeyError("no"))


@app.task(bind=True, max_retries=1)
def longer(self: Task, key: str) -> str:
    note(key, "run", self.request.retries)
    if self.request.retries < 3:
        self.retry(countdown=0, max_retries=5)
    return "done"


@app.task(bind=True, max_retries=None)
def stubborn(self: Task, key: str) -> str:
    note(key, "run", self.request.retries)
    if self.request.retries < 5:
        self.retry(countdown=0)
    return "done"


@app.task(bind=True)
def counting(self: Task, key: str, n: int, step: int = 1) -> int:
    note(key, f"n={n}", self.request.retries)
    if n < 3:
        raise self.retry(args=(key, n + step), countdown=0)
    return n


@app.task(bind=True)
def quietly(self: Task, key: str) -> str:
    note(key, "run", self.request.retries)
    if self.request.retries == 0:
        self.retry(countdown=0, throw=False)
        return "too early"
    return "in time"


@app.task
def unbound(key: str) -> str:
    note(key, "run", unbound.request.retries)
    if unbound.request.retries == 0:
        raise unbound.retry(countdown=0)
    return "done"


@app.task(autoretry_for=(OSError,), max_retries=2, retry_backoff=1, retry_backoff_max=1,
          retry_jitter=False)  # fmt: skip
def backing_off(key: str) -> None:
    """Fail in a way that Celery retries by itself, a second later each time."""
    note(key, "run", backing_off.request.retries)
    raise ConnectionError("down")


@app.task(autoretry_for=(Exception,), retry_kwargs={"max_retries": 2, "countdown": 0},
          dont_autoretry_for=(KeyError,))  # fmt: skip
def picky(key: str) -> None:
    note(key, "run", picky.request.retries)
    raise KeyError("order 42")


@app.task(autoretry_for=(ValueError,), retry_kwargs={"countdown": 0})
def recovering(key: str) -> str:
    note(key, "run", recovering.request.retries)
    if recovering.request.retries < 2:
        raise ValueError
    return "well again"


@app.task(bind=True)
def named(self: Task, key: str) -> list[Any]:
    note(key, "run")
    return [self.request.id, self.request.root_id]


@app.task(bind=True)
def reporting(self: Task, key: str) -> str:
    """Show progress until it was seen."""
    note(key, "run")
    self.update_state(state="PACKING", meta={"current": 1, "total": 2, "of": ["a", "b"]})
    Redis.from_url(BACKEND).blpop(f"seen:{key}", 20)
    return "packed"


@app.task(bind=True)
def patient(self: Task, key: str) -> str:
    note(key, "run", self.request.retries)
    if self.request.retries == 0:
        raise self.retry(countdown=3)
    return "done"


@app.task
def ignored(key: str) -> None:
    note(key, "run")
    raise Ignore


@app.task
def rejected(key: str) -> None:
    note(key, "run")
    raise Reject("not mine", requeue=False)


@app.task
def broken(key: str) -> None:
    """Raise what nobody expects: no retry."""
    note(key, "run")
    raise ZeroDivisionError("by zero")


@app.task(throws=(KeyError,))
def expected(key: str) -> None:
    note(key, "run")
    raise KeyError("expected")


@app.task(soft_time_limit=0.5)
def tidy(key: str) -> str:
    try:
        time.sleep(20)
    except SoftTimeLimitExceeded:
        note(key, "cleaned up")
        return "cleaned up"
    return "never"


@app.task(soft_time_limit=0.5, time_limit=30)
def untidy(key: str) -> None:
    note(key, "run")
    time.sleep(20)


@app.task
def typed(key: str, when: datetime, price: Decimal, ids: list[UUID], raw: bytes) -> list[Any]:
    note(key, f"{when!r} {price!r} {ids!r} {raw!r}")
    return [when, price, ids, raw]


@app.task
def unstorable(key: str) -> set[int]:
    note(key, "run")
    return {1, 2}


@app.task(ignore_result=True)
def forgettable(key: str) -> object:
    note(key, "run")
    return object()


class Order(BaseModel):
    number: int


@app.task(pydantic=True)
def priced(key: str, order: Order) -> Order:
    note(key, f"{order!r}")
    return Order(number=order.number + 1)


class Talkative(Task):
    """Notes what Celery calls."""

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        note(args[0], f"before_start {args[1:]} {kwargs}", self.request.retries)

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        note(args[0], f"on_success {retval!r}", self.request.retries)

    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        note(args[0], f"on_retry {exc!r} {einfo.type.__name__}", self.request.retries)

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        note(args[0], f"on_failure {exc!r} {einfo.type.__name__}", self.request.retries)

    def after_return(
        self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        note(args[0], f"after_return {status} {retval!r}", self.request.retries)


@app.task(bind=True, base=Talkative)
def telling(self: Task, key: str, ending: str) -> str:
    note(key, "run", self.request.retries)
    if self.request.retries == 0:
        raise self.retry(exc=OSError("again"), countdown=0)
    if ending == "raise":
        raise RuntimeError("no")
    return ending


class Wrapped(Task):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        note(args[0], "around", self.request.retries)
        return super().__call__(*args, **kwargs)


@app.task(bind=True, base=Wrapped)
def wrapped(self: Task, key: str) -> list[Any]:
    return [self.request.id is not None, self.request.retries, self.request.called_directly]


class Classic(Task):
    name = "sample_celery.Classic"

    def run(self, key: str, *names: str) -> str:
        note(key, "run", self.request.retries)
        return "hello " + " and ".join(names)


classic = app.register_task(Classic())


@shared_task(bind=True)
def shared(self: Task, key: str) -> str:
    note(key, f"{self.app.main} {shared.request.id == self.request.id}")
    return shared.app.main


# -- for a canvas: each result says how it came about


@app.task
def say(*args: Any, key: str, name: str) -> str:
    said = f"{name}({', '.join(str(arg) for arg in args)})".replace("'", "")
    note(key, said)
    return said


@app.task(bind=True)
def say_again(self: Task, *args: Any, key: str) -> str:
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    note(key, f"again{args}", self.request.retries)
    return f"again({', '.join(args)})"


@app.task(bind=True)
def say_more(self: Task, before: str, n: int, *, key: str) -> str:
    if n < 3:
        raise self.retry(args=(f"{before}+", n + 1), countdown=0)
    note(key, before, self.request.retries)
    return before


@app.task(ignore_result=True)
def unkept(*, key: str) -> str:
    note(key, "unkept")
    return "unkept"


@app.task
def fail(*args: Any, key: str) -> None:
    note(key, "fail")
    raise ZeroDivisionError("by zero")


@app.task
def errback(task_id: str, *, key: str) -> None:
    note(key, f"errback {isinstance(task_id, str)}")


@app.task
def now(*, key: str) -> list[Any]:
    note(key, "now")
    return [datetime.fromisoformat("2026-07-01T12:30:00+00:00"), Decimal("9.90")]
