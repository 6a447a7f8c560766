"""create_task with Celery's canvas: chains, groups, chords and callbacks become a flow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from celery import Celery
from celery.canvas import Signature, maybe_signature
from celery.exceptions import NotRegistered
from celery.utils.functional import arity_greater, maybe_list

from tasks_app.broker.translation import CANVAS, Partial
from tasks_app.domain.creation import NewTask
from tasks_app.domain.errors import InvalidTaskError
from tasks_app.domain.flows import LONGEST_NAME, Flow, Need, failed


def flow_of(new: NewTask) -> tuple[Flow, str] | None:
    """Return the flow, and its step whose id create_task returns; None: it is a single task.

    Raises:
        InvalidTaskError: the flow could not keep what the canvas says.
    """
    canvas = new.task
    if not isinstance(canvas, Signature) or not (
        canvas.task in CANVAS or canvas.options.get("link") or canvas.options.get("link_error")
    ):
        return None
    kind = CANVAS.get(canvas.task, "signature with callbacks")
    given = {"payload": new.payload, "args": new.args, "kwargs": new.kwargs, **(new.options or {})}
    biz_key = given.pop("biz_key", None)
    for name, value in given.items():
        if value is not None:
            allowed = "biz_key; all else in its signatures, as with .set(countdown=60)"
            raise InvalidTaskError(name, f"is given to a {kind}", allowed)
    steps = _Steps(canvas.app, biz_key)
    end = steps.add(canvas)
    if not steps.flow.steps:
        raise InvalidTaskError("task", f"is a {kind} without tasks", "one at least")
    last = str(end.needs[-1])
    steps.flow.name = last.partition(" ")[2]
    return steps.flow, last


class _Given(NamedTuple):
    """What a signature waits for, and what comes before its arguments: see ``Call``."""

    needs: tuple[Need | str, ...] = ()
    first: Any = None


_START = _Given()


class _Steps:
    """The steps of a canvas, each made before those that need it, in the order of a header."""

    def __init__(self, app: Celery, biz_key: str | None) -> None:
        self.flow = Flow("canvas")
        self._app = app
        self._biz_key = biz_key

    def add(
        self,
        each: Mapping[str, Any],
        given: _Given = _START,
        errbacks: Iterable[Mapping[str, Any]] = (),
        options: Mapping[str, Any] | None = None,
    ) -> _Given:
        """Add a signature with all in it; ``options`` win, as those of ``apply_async`` do.

        Returns:
            What a signature behind it is given.
        """
        signature = self._signature(each)
        own = {**signature.options, **(options or {})}
        links = maybe_list(own.pop("link", None)) or []
        errbacks = [*errbacks, *(maybe_list(own.pop("link_error", None)) or [])]
        if signature.immutable:
            given = _Given(given.needs)
        if signature.task in CANVAS and signature.args:
            problem = f"are given to a {CANVAS[signature.task]}"
            raise InvalidTaskError("args", problem, "them in its tasks")
        if signature.task in CANVAS and own.get("task_id") is not None:
            problem = f"is given to a {CANVAS[signature.task]}"
            raise InvalidTaskError("options.task_id", problem, "it in one of its tasks")
        match CANVAS.get(signature.task):
            case "chain":
                end = self._chain(signature, given, errbacks, own)
            case "group":
                end = self._group(signature.tasks, given, errbacks, own)
            case "chord":
                end = self._chord(signature, given, errbacks, own)
            case _:
                end = self._step(signature, given, errbacks, own)
        if links and isinstance(end.first, list):  # as Celery refuses it
            raise InvalidTaskError("options.link", "is given to a group", "a chord")
        for link in links:
            self.add(link, end)
        return end

    def _chain(
        self, chain: Signature, given: _Given, errbacks: list[Any], options: Mapping[str, Any]
    ) -> _Given:
        for each in chain.tasks:
            task = self._signature(each)
            if CANVAS.get(task.task) == "group":
                members = list(task.tasks)
                if len(members) == 1:  # Celery takes it for the task itself
                    task = self._signature(members[0])
                elif not members:
                    continue
            given = self.add(task, given, errbacks, options)
            options = {}  # those of a chain are its first task's
        return given

    def _group(
        self,
        tasks: Iterable[Any],
        given: _Given,
        errbacks: list[Any],
        options: Mapping[str, Any],
    ) -> _Given:
        needs: tuple[Need | str, ...] = ()
        results: list[Any] = []
        for each in tasks:
            task = self._signature(each)
            before = len(self.flow.steps)
            end = self.add(task, given, errbacks, options)
            if len(self.flow.steps) > before:
                needs += end.needs
                results += end.first if CANVAS.get(task.task) == "group" else [end.first]
        return _Given(needs or given.needs, results)

    def _chord(
        self, chord: Signature, given: _Given, errbacks: list[Any], options: Mapping[str, Any]
    ) -> _Given:
        if chord.body is None:
            raise InvalidTaskError("task", "is a chord without a body", "chord(header, body)")
        body = self._signature(chord.body)
        # Celery calls the body's errbacks when a task of the header fails. With this setting
        # the header has them already.
        of_header = errbacks
        if not self._app.conf.task_allow_error_cb_on_chord_header:
            of_header = [*errbacks, *(maybe_list(body.options.get("link_error")) or [])]
        header = getattr(chord.tasks, "tasks", chord.tasks)
        end = self._group(header, given, of_header, options)
        delays = ("countdown", "eta")  # are the header's
        return self.add(
            body, end, errbacks, {n: value for n, value in options.items() if n not in delays}
        )

    def _step(
        self, signature: Signature, given: _Given, errbacks: list[Any], options: dict[str, Any]
    ) -> _Given:
        name = f"{len(self.flow.steps) + 1} {signature.task}"[:LONGEST_NAME]
        call = signature.replace(options=options)
        task: Any = call if given.first is None else Partial(call, given.first)
        self.flow.step(name, task, needs=given.needs, biz_key=self._biz_key)
        for place, errback in enumerate(errbacks):
            if errback not in errbacks[:place]:
                self._errback(name, self._signature(errback))
        return _Given((name,), name)

    def _errback(self, step: str, errback: Signature) -> None:
        if errback.task in CANVAS:
            problem = f"is a {CANVAS[errback.task]}"
            raise InvalidTaskError("options.link_error", problem, "a task")
        if not (errback.immutable or _takes_an_id(errback)):
            problem = f"calls {errback.task} with the request, the exception and the traceback"
            allowed = "a task that takes the failed one's id, or .si(…)"
            raise InvalidTaskError("options.link_error", problem, allowed)
        self.add(errback, _Given((failed(step),), {"task_id": step}))

    def _signature(self, given: Mapping[str, Any]) -> Signature:
        if isinstance(given, Signature):
            return given
        found: Signature = maybe_signature(given, app=self._app)  # it came as JSON
        return found


def _takes_an_id(errback: Signature) -> bool:
    """Whether Celery would give it the failed task's id, by the same rule."""
    try:
        header = getattr(errback.type, "__header__", None)
    except NotRegistered:
        return True
    if header is None or isinstance(header, partial):  # of a class, or bound
        return True
    return not arity_greater(partial(header, *errback.args, **errback.kwargs), 1)
