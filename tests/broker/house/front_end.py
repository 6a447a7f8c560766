"""The front end of Celery's tutorials: a request starts a task, others poll its status.

``FRONT_BACKEND`` is its one setting. Its server forks for each request, or starts a thread.
"""

from __future__ import annotations

import json
import os
import socketserver
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from celery import Celery, Task
from sqlalchemy import create_engine

from tasks_app.celery_tasks import OutboxTask, outbox

BACKEND = os.environ["FRONT_BACKEND"]
app = Celery("front_end", broker=os.environ["FRONT_BROKER"], backend=BACKEND)
app.conf.update(
    task_default_queue="front",
    broker_transport_options={"global_keyprefix": "front:"},
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


@app.task(bind=True, base=OutboxTask)
def bake(self: Task, cakes: int, *, burn: bool = False) -> dict[str, Any]:
    time.sleep(0.5)  # both worlds show PENDING meanwhile
    for done in range(1, cakes + 1):
        meta = {"current": done, "total": cakes, "status": f"cake {done}"}
        self.update_state(state="PROGRESS", meta=meta)
        time.sleep(1.5)
    if burn:
        raise RuntimeError("the oven is on fire")
    return {"current": cakes, "total": cakes, "status": "all baked", "result": 42}


def start(cakes: str, how: str) -> dict[str, Any]:
    call = (int(cakes),), {"burn": how == "burn"}
    if BACKEND != "tasks_app://":
        return {"id": bake.apply_async(*call).id}
    engine = create_engine(os.environ["TASKS_APP_DATABASE_URL"])
    with engine.begin() as connection, outbox(connection):
        return {"id": bake.apply_async(*call).id}


def status(task_id: str) -> dict[str, Any]:
    task = app.AsyncResult(task_id)
    state, info = task.state, task.info
    if task.state != state:  # each is read by itself, and it went on in between
        return status(task_id)
    if state == "PENDING":
        return {"state": state, "current": 0, "total": 1, "status": "Pending..."}
    if state == "FAILURE":
        return {"state": state, "current": 1, "total": 1, "status": str(info)}
    return {"state": state, **info}


def answer(environ: dict[str, Any], begin: Callable[..., Any]) -> Iterable[bytes]:
    _, view, *given = environ["PATH_INFO"].split("/")
    body = json.dumps({"start": start, "status": status}[view](*given)).encode()
    begin("200 OK", [("Content-Type", "application/json")])
    return [body]


class Forking(socketserver.ForkingMixIn, WSGIServer):
    """A process for each request, forked from one that has read the pool already."""


class Threading(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


if __name__ == "__main__":
    port, kind = sys.argv[1:]
    status("1")
    server = {"forks": Forking, "threads": Threading}[kind](
        ("127.0.0.1", int(port)), WSGIRequestHandler
    )
    server.set_app(answer)
    server.serve_forever()
