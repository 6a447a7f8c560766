"""docs/celery-settings.md names all that Celery has; what it calls neutralised or refused is so."""

from __future__ import annotations

import fnmatch
import json
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from celery import Celery
from celery.app.defaults import DEFAULTS
from celery.beat import PersistentScheduler
from celery.bin.beat import beat
from celery.bin.worker import worker
from celery.worker.control import Panel
from celery.worker.request import Request, create_request_cls
from kombu.exceptions import DecodeError
from kombu.message import Message

import tasks_app.broker.control  # noqa: F401  it adds our commands
from tasks_app.broker import control
from tasks_app.broker.app import register
from tasks_app.broker.beat import PoolScheduler
from tasks_app.broker.checks import check_environment
from tasks_app.broker.consumer import OURS, RabbitConsumer, guard_queues
from tasks_app.broker.defaults import EXECUTE, PASSED_BY, celery_defaults
from tasks_app.broker.messages import Envelope
from tasks_app.domain.config.settings import Settings
from tasks_app.runtime.worker.control_inbox import ControlCommand, Do
from tests.docs.reading import section, text_of
from tests.environment import NEWEST_CELERY

PAGE = text_of("docs/celery-settings.md")
HONOURED, NEUTRALISED, REFUSED = "honoured", "neutralised", "refused"
EXISTING = {
    "Settings": set(DEFAULTS),
    "Options of `celery worker`": {str(option.name) for option in worker.params},
    "Options of `celery beat`": {str(option.name) for option in beat.params},
    "Remote commands": set(Panel.data),
}


class Row(NamedTuple):
    """One name of a table, which may be a pattern."""

    name: str
    here: str
    how: str


def rows(heading: str) -> list[Row]:
    """What the tables under a heading say, a row for each name."""
    found = re.findall(r"^\| (`.+?) \| (\w+) \| (.+) \|$", section(PAGE, heading), re.MULTILINE)
    return [
        Row(name, here, how)
        for names, here, how in found
        for name in re.findall(r"`([^`]+)`", names)
    ]


def named(heading: str, here: str) -> list[str]:
    patterns = [row.name for row in rows(heading) if row.here == here]
    return sorted(
        name for name in EXISTING[heading] if any(fnmatch.fnmatch(name, p) for p in patterns)
    )


@pytest.fixture
def apps() -> Iterator[Callable[..., Celery]]:
    """Make apps with our tasks and one of somebody else, and close them."""
    made: list[Celery] = []

    def make(**theirs: Any) -> Celery:
        app = Celery("feels", set_as_current=False)
        app.conf.update(celery_defaults("memory://", 1.0) | theirs)
        register(app)

        @app.task(name="celerys.own", shared=False)
        def own() -> None:
            """A Celery task of somebody else."""

        app.finalize()
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()


@pytest.mark.skipif(not NEWEST_CELERY, reason="the page is about the newest Celery")
@pytest.mark.parametrize("heading", EXISTING)
def test_each_name_of_the_installed_celery_is_in_one_row(heading: str) -> None:
    for name in sorted(EXISTING[heading]):
        said = [row for row in rows(heading) if fnmatch.fnmatch(name, row.name)]
        assert len(said) == 1, f"{name} is in {len(said)} rows of {heading!r}"
    for row in rows(heading):
        assert row.here in (HONOURED, NEUTRALISED, REFUSED)
        assert fnmatch.filter(EXISTING[heading], row.name), f"{row.name} is nothing of Celery's"


# -- what is neutralised: nothing of ours feels it

ODD: dict[str, Any] = {
    "task_default_rate_limit": "1/h",
    "task_annotations": {"*": {"rate_limit": "1/h", "time_limit": 1, "acks_late": True}},
    "task_protocol": 1,
    "task_serializer": "yaml",
    "task_compression": "gzip",
    "task_default_delivery_mode": 1,
    "task_default_priority": 9,
    "task_default_routing_key": "elsewhere",
    "task_routes": {"*": {"queue": "elsewhere", "priority": 3}},
    "task_publish_retry_policy": {"max_retries": 99},
    "worker_eta_task_limit": 1,
    "result_backend": "redis://127.0.0.1:1/0",
    "result_accept_content": ["pickle"],
    "result_serializer": "pickle",
    "result_compression": "gzip",
    "result_failure_expires": 1,
    "beat_schedule_filename": "/nowhere/at-all",
    "beat_sync_every": 1,
}
"""Values that would be felt; of switches it is the other one, of the rest any text."""


def changed(name: str) -> dict[str, Any]:
    """A configuration in which this setting, and what it needs to matter, is another."""
    default = celery_defaults("memory://", 1.0).get(name, DEFAULTS[name])
    other = not default if isinstance(default, bool) else ODD.get(name, "odd")
    needed = {"worker_deduplicate_successful_tasks": {"task_acks_late": True}}
    return {**needed.get(name, {}), name: other}


class Felt(NamedTuple):
    """All by which a message of ours could come to feel a setting."""

    attributes: list[tuple[Any, ...]]
    envelope: tuple[Any, ...]
    text: dict[str, Any]
    pool: list[dict[str, Any]]
    limited: list[Any]


ATTRIBUTES = (
    *("rate_limit", "time_limit", "soft_time_limit", "acks_late", "acks_on_failure"),
    *("acks_on_timeout", "acks_on_failure_or_timeout", "reject_on_worker_lost", "priority"),
    *("retry_on_worker_lost", "track_started", "ignore_result", "store_eager_result"),
    *("store_errors_even_if_ignored", "serializer", "send_events", "max_retries"),
)


def felt(app: Celery, names: tuple[str, ...] = OURS) -> Felt:
    sent: list[Any] = []
    channel = SimpleNamespace(
        prepare_message=lambda *body, **parts: (body, parts),
        basic_publish=lambda message, **way: sent.append((message, way)),
    )
    envelope = Envelope(app)
    envelope.put(channel, "mail", 1, [1, 2])
    text = json.loads(envelope.text("mail", 1, [1, 2]))
    given: list[dict[str, Any]] = []
    pool = SimpleNamespace(apply_async=lambda *_, **options: given.append(options))
    tasks = [app.tasks[name] for name in names]
    for task in tasks:
        request = create_request_cls(Request, task, pool, "host", None, app=app)
        one = request(_message(task.name), app=app, task=task)
        one.execute_using_pool(pool)
    (((body, parts), way),) = sent
    return Felt(
        [
            (
                task.name,
                *(getattr(task, each, None) for each in ATTRIBUTES),
                type(task.backend).__name__,
            )
            for task in tasks
        ],
        (body, _without_names(parts), way),
        _without_names(text),
        [
            {k: v for k, v in each.items() if "timeout" in k and "callback" not in k}
            for each in given
        ],
        [task.rate_limit for task in tasks],
    )


def _message(task: str) -> Any:
    headers = {"id": "a", "task": task, "root_id": "a"}
    return Message(
        "[[], {}, {}]", headers=headers, content_type="application/json", content_encoding="utf-8",
        delivery_info={}, channel=None,
    )  # fmt: skip


def _without_names(parts: Any) -> Any:
    return json.loads(re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "<name>", json.dumps(parts)))


def on_beat(_name: str) -> None:
    """Ours keeps no file, and so synchronises nothing."""
    assert not issubclass(PoolScheduler, PersistentScheduler)
    assert PoolScheduler.sync is PersistentScheduler.__mro__[1].sync


def on_rabbitmq(_name: str) -> None:
    """Celery's step that makes the queues for delays is not among ours."""
    assert not [step for step in RabbitConsumer.Blueprint.default_steps if "delayed" in str(step)]


PROOFS = {
    "beat_schedule_filename": on_beat,
    "beat_sync_every": on_beat,
    "broker_native_delayed_delivery_queue_type": on_rabbitmq,
}


def test_a_celery_task_feels_its_settings(apps: Callable[..., Celery]) -> None:
    """Else the next test would see nothing, whatever we do."""
    theirs = {"task_acks_late": True, "task_default_rate_limit": "1/h", "task_time_limit": 3}
    plain, odd = (felt(apps(**more), ("celerys.own",)) for more in ({}, theirs))
    assert plain.attributes != odd.attributes
    assert (plain.pool, odd.pool) == (
        [{"soft_timeout": None, "timeout": None}],
        [{"soft_timeout": None, "timeout": 3 if NEWEST_CELERY else None}],  # else the pool's own
    )


@pytest.mark.filterwarnings("ignore:The DisabledBackend result backend")
@pytest.mark.parametrize("name", named("Settings", NEUTRALISED))
def test_no_message_of_ours_feels_what_is_neutralised(
    name: str, apps: Callable[..., Celery]
) -> None:
    if name in PROOFS:
        PROOFS[name](name)
        return
    assert felt(apps(**changed(name))) == felt(apps())


@pytest.mark.parametrize("name", ["task_time_limit", "task_soft_time_limit"])
def test_no_message_feels_a_time_limit(name: str, apps: Callable[..., Celery]) -> None:
    assert felt(apps(**{name: 3})) == felt(apps())


def test_doctor_names_what_the_page_calls_neutralised() -> None:
    assert set(PASSED_BY) == {row.name for row in rows("Settings") if row.here == NEUTRALISED}


@pytest.mark.parametrize("heading", ["Options of `celery worker`", "Options of `celery beat`"])
def test_the_only_neutralised_options_are_of_beats_file(heading: str) -> None:
    assert set(named(heading, NEUTRALISED)) == {
        "schedule_filename" if "worker" in heading else "schedule"
    }
    assert named(heading, REFUSED) == []
    on_beat(heading)


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
    went_off.append("boom")


class Bomb:
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


@pytest.mark.parametrize(
    ("command", "given", "sent", "said"),
    [
        ("revoke", {}, (Do.REVOKE, None), "if they wait; terminate ends those that run, too"),
        ("revoke", {"terminate": True}, (Do.CANCEL, 5.0), "interrupted and killed after 5 s"),
        ("revoke", {"terminate": True, "signal": "KILL"}, (Do.CANCEL, 0.0), "and killed"),
        ("terminate", {"signal": "SIGTERM"}, (Do.CANCEL, 5.0), "killed after 5 s"),
        ("terminate", {"signal": "SIGKILL"}, (Do.CANCEL, 0.0), "and killed"),
        ("terminate", {"signal": 9}, (Do.CANCEL, 0.0), "and killed"),
    ],
)
def test_what_is_asked_of_a_task_and_what_is_answered(
    monkeypatch: pytest.MonkeyPatch, command: str, given: Any, sent: Any, said: str
) -> None:
    control.connect_control()
    commands: list[ControlCommand] = []
    monkeypatch.setattr(control, "_send", commands.append)
    answer = Panel.data[command](SimpleNamespace(), task_id=["7", "5"], **given)
    assert answer["ok"].startswith("tasks 5, 7 will be cancelled")
    assert answer["ok"].endswith(said)
    assert [(c.do, c.kill_after_s, c.ids) for c in commands] == [(*sent, (5, 7))]


def test_the_neutralised_command_is_the_one_of_stamps() -> None:
    """That none is left to act on is shown above."""
    assert named("Remote commands", NEUTRALISED) == ["revoke_by_stamped_headers"]
