"""Log lines as JSON: by hand, of ``tasks-app work``, and of real workers."""

from __future__ import annotations

import json
import logging
import sys

from tasks_app.runtime.tracing.run_logs import JsonLines, name_worker


def line(message: str, *arguments: object, **fields: object) -> dict[str, object]:
    record = logging.LogRecord("a.b", logging.WARNING, __file__, 1, message, arguments, None)
    record.created = 0.25
    vars(record).update(fields)
    written = JsonLines().format(record)
    assert "\n" not in written
    return json.loads(written)


def test_a_line_says_when_where_and_what() -> None:
    said = line("two\nlines \x1b %s", "\udcff")

    assert said.pop("worker")
    assert said == {
        "time": "1970-01-01T00:00:00.250Z",
        "level": "WARNING",
        "logger": "a.b",
        "message": "two\nlines \x1b \udcff",
    }


def test_of_the_fields_only_those_of_a_run_are_written() -> None:
    run = {"task_id": 7, "attempt": 2, "queue": "mail", "biz_key": "order:1"}

    said = line("x", task_name="t", payload={"card": "4111-1111"}, data="4111-1111", **run)

    assert {key: said[key] for key in ("name", *run)} == {"name": "t", **run}
    assert "4111-1111" not in str(said)
    assert "biz_key" not in line("x", biz_key=None)


def test_an_exception_has_its_traceback() -> None:
    try:
        raise ValueError("boom")
    except ValueError:
        said = line("x", exc_info=sys.exc_info())

    assert str(said["exception"]).endswith("ValueError: boom")


def test_a_child_is_called_as_in_the_database() -> None:
    name_worker("host:1:abc")

    assert line("x")["worker"] == "host:1:abc"
