"""A plain script: the lines of a file become tasks, all or none.

python script.py names.txt      # one task per line, in one transaction
python script.py                # run what is due, here, until nothing is left
"""

from __future__ import annotations

import sys
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from tasks_app import NewTask, Settings, TaskContext, create_tasks, handler
from tasks_app.testing import drain


@handler("script.greet", retry="1s,5s")
def greet(ctx: TaskContext, payload: dict[str, str]) -> dict[str, str]:
    """Do the work; what is returned is kept as the result."""
    return {"said": f"Hello, {payload['name']}!", "attempt": str(ctx.attempt)}


def load(path: Path, settings: Settings) -> None:
    """Create a task for each line; a name that waits already is not greeted twice."""
    names = path.read_text().split()
    tasks = [NewTask(greet, {"name": name}, {"unique_key": name}) for name in names]
    engine = create_engine(settings.database)
    with Session(engine) as session, session.begin():
        made = create_tasks(session, tasks)
    engine.dispose()
    print(f"{sum(each.created for each in made)} of {len(made)} names are new.")


if __name__ == "__main__":
    settings = Settings()  # of TASKS_APP_DATABASE_URL
    if len(sys.argv) > 1:
        load(Path(sys.argv[1]), settings)
    else:
        drain(settings)
