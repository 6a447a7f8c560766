"""What comes over the broker or by remote control past docs/celery-settings.md is refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.worker.control import Panel
from kombu.exceptions import DecodeError
from kombu.message import Message

from tasks_app.broker import control
from tasks_app.broker.app import register
from tasks_app.broker.checks import check_environment
from tasks_app.broker.consumer import OURS, guard_queues
from tasks_app.broker.defaults import EXECUTE
from tasks_app.domain.config.settings import Settings
from tests.broker.celery_page import (
    NEUTRALISED,
    REFUSED,
    celery_apps,
    named,
)


@pytest.fixture(autouse=True)
def _clean() -> None:
    """No house here."""


@pytest.fixture
def apps() -> Iterator[Callable[..., Celery]]:
    with celery_apps() as make:
        yield make


def handled(apps: Callable[..., Celery], message: Any) -> Any:
    """The request that becomes of a message, as the worker's strategy makes it; or None."""
    app = apps()
    guard_queues(app, frozenset({"default"}))
    made: list[Any] = []
    consumer = SimpleNamespace(
        hostname="host", connection_errors=(), event_dispatcher=None, disable_rate_limits=False,
        timer=SimpleNamespace(call_at=None), apply_eta_task=None, task_buckets={EXECUTE: None},
        on_task_request=made.append, _limit_task=None, _limit_post_eta=None, app=app,
        pool=SimpleNamespace(apply_async=None),
        controller=SimpleNamespace(state=SimpleNamespace(revoked=set())),
    )  # fmt: skip
    strategy = app.tasks[EXECUTE].start_strategy(app, consumer)
    strategy(message, None, lambda *_: None, lambda *_: None, [])
    return made[0] if made else None


def full_message(content_type: str = "application/json", **headers: Any) -> Any:
    body = '[[null, [1]], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
    return Message(
        body, content_type=content_type, content_encoding="utf-8", accept={"application/json"},
        headers={"id": "a", "task": EXECUTE, "root_id": "a", **headers},
        delivery_info={"routing_key": "default", "redelivered": True},
        channel=SimpleNamespace(basic_reject=lambda *_, **__: None), delivery_tag="1",
    )  # fmt: skip


def test_of_a_message_nothing_is_kept_that_settings_or_commands_act_on(
    apps: Callable[..., Celery],
) -> None:
    """Stamps, an eta, limits of its own, and that it comes again."""
    stamps = {"stamped_headers": ["who"], "stamps": {"who": "me"}, "who": "me"}
    rest = {"eta": "2030-01-01T00:00:00+00:00", "timelimit": [1, 1], "ignore_result": False}
    request = handled(apps, full_message(**stamps, **rest))
    assert (request.eta, request.time_limits) == (None, (None, None))
    assert request.delivery_info["redelivered"] is False
    assert (
        not {"stamps", "stamped_headers", "who", "timelimit", "eta"}
        & request.message.headers.keys()
    )


went_off: list[str] = []


def go_off() -> None:
    """Somebody's code."""
    went_off.append("boom")


class Bomb:
    """Runs code when it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return go_off, ()


def test_what_is_no_json_is_not_even_read(apps: Callable[..., Celery]) -> None:
    """Where somebody's ``accept_content`` lets pickle in."""
    kind = "application/x-python-serialize"
    message = full_message(kind)
    message.accept, message.body, message.content_encoding = {kind}, pickle.dumps(Bomb()), "binary"
    with suppress(DecodeError):  # what is read raises
        assert handled(apps, message) is None
    assert not went_off


# -- what is refused


@pytest.mark.parametrize("name", named("Settings", REFUSED))
def test_a_worker_does_not_start_on_what_is_refused(name: str) -> None:
    theirs = {"accept_content": {"accept_content": ["pickle"], "broker_url": "memory://"}}
    app = Celery("refused", set_as_current=False)
    app.conf.update(theirs.get(name, {name: "127.0.0.1"}))
    with pytest.raises(SystemExit) as refusal:
        check_environment(app, Settings(database_url="postgresql+psycopg:///nowhere"))
    assert ("accept_content" if name in theirs else "TASKS_APP_BROKER_URL") in str(refusal.value)


def test_the_remote_commands_that_are_refused_are_for_our_messages() -> None:
    control.connect_control()
    app = Celery("rules", set_as_current=False)
    register(app)
    state = SimpleNamespace(app=app)
    assert named("Remote commands", REFUSED) == ["rate_limit", "time_limit"]
    for name in OURS:
        for command, value in (("time_limit", {"hard": 1}), ("rate_limit", {"rate_limit": "1/h"})):
            said = Panel.data[command](state, task_name=name, **value)
            assert said.get("error", "").startswith(f"{name} is not Celery's to limit.")
        assert app.tasks[name].rate_limit is app.tasks[name].time_limit is None
    assert "error" in Panel.data["time_limit"](state, task_name="nobody's")


def test_a_message_of_ours_is_not_revoked_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    control.connect_control()
    requests = {"ours": SimpleNamespace(name=EXECUTE)}
    monkeypatch.setattr(control.worker_state, "requests", requests)
    for command in ("revoke", "terminate"):
        said = Panel.data[command](SimpleNamespace(), task_id=["ours"], signal="KILL")
        assert "carries many tasks" in said["error"]
    assert "ours" not in control.worker_state.revoked


def test_the_neutralised_command_is_the_one_of_stamps() -> None:
    """That none is left to act on is shown above."""
    assert named("Remote commands", NEUTRALISED) == ["revoke_by_stamped_headers"]
