"""A producer with all logging switched on: ``python produce.py SECRET NAME…``, prints the ids."""

from __future__ import annotations

import logging
import sys

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from tasks_app import create_task
from tasks_app.domain.config.settings import load_settings
from tasks_app.domain.errors import InvalidTaskError


def main(secret: str, names: list[str]) -> None:
    """Create a task of each name, and one that is refused."""
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("tasks_app").setLevel(logging.DEBUG)
    logging.getLogger("celery").setLevel(logging.DEBUG)
    logging.getLogger("kombu").setLevel(logging.DEBUG)
    engine = create_engine(load_settings().database, hide_parameters=True)
    payload = {"card": secret, "deep": [{"er": secret}]}
    with Session(engine) as session, session.begin():
        for name in names:
            print(int(create_task(session, name, payload, headers={"authorization": secret})))
        for bad in ({"x": [secret, b"bytes"]}, {"x": {secret}}, {"x": secret + "\x00"}):
            try:
                create_task(session, "refused", bad)
            except InvalidTaskError:
                logging.getLogger("tasks_app").exception("refused, as it should be")


main(sys.argv[1], sys.argv[2:])
