"""A first task of your own, in twelve lines.

While ``tasks-app demo`` runs, its worker carries it out. In a second terminal:

    . .venv/bin/activate && eval "$(tasks-app urls)" && python examples/hello.py
"""

from __future__ import annotations

import os

from pydantic import BaseModel
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from tasks_app import TaskContext, create_task, handler


class Hello(BaseModel):
    """What the task is given."""

    name: str


@handler("hello.say")
def say_hello(ctx: TaskContext, payload: Hello) -> dict[str, str]:
    """Do the work; what is returned is kept as the result."""
    return {"said": f"Hello, {payload.name}! This is attempt {ctx.attempt}."}


if __name__ == "__main__":
    engine = create_engine(os.environ["TASKS_APP_DATABASE_URL"])
    with Session(engine) as session, session.begin():
        task_id = create_task(session, say_hello, Hello(name="world"))
    print(f"Task {task_id} is in the pool. See what it said: tasks-app show {task_id}")
