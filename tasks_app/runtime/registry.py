"""Which handlers this process knows."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack

from tasks_app.domain.breaker import Breaker, check_breaker
from tasks_app.domain.durations import Duration, parse_duration
from tasks_app.domain.errors import ConfigurationError, HandlerError, InvalidTaskError
from tasks_app.domain.handler import HandlerSpec, signature_of
from tasks_app.domain.names import check_name, check_queue
from tasks_app.domain.outage import OutageRule, parse_limit
from tasks_app.domain.outcome import Reaction
from tasks_app.domain.retry import DEFAULT_POLICY, MOST_ATTEMPTS, RetryPolicy, parse_policy
from tasks_app.domain.task import NewTask

if TYPE_CHECKING:
    from tasks_app.domain.declaration import Declaration
    from tasks_app.domain.schedule import When

P = ParamSpec("P")
R = TypeVar("R")


class Handler(Generic[P, R]):
    """A function with its declaration; calling it calls the function, as in a unit test."""

    def __init__(self, spec: HandlerSpec, function: Callable[P, R]) -> None:
        self.spec = spec
        self._function = function
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function itself, without task, pool or broker."""
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<handler {self.spec.name}>"


class Registry:
    """Handlers by name."""

    def __init__(self) -> None:
        self._specs: dict[str, HandlerSpec] = {}
        self.schedules: dict[str, Declaration] = {}
        """What code declares, by name."""

    def add(self, spec: HandlerSpec) -> None:
        """Enter a handler; entering the same function again, as on a re-import, is harmless.

        Raises:
            HandlerError: another function has the name.
        """
        known = self._specs.get(spec.name)
        if known is not None and _where(known.function) != _where(spec.function):
            raise HandlerError(
                f"{spec.name} is handled by {_where(known.function)} already. "
                f"Give {_where(spec.function)} another name."
            )
        self._check_breaker(spec)
        self._specs[spec.name] = spec

    def _check_breaker(self, spec: HandlerSpec) -> None:
        mine = spec.depends_on
        for other in self._specs.values():
            its = other.depends_on
            if mine and its and its.dependency == mine.dependency and its != mine:
                raise HandlerError(
                    f"{spec.name} and {other.name} declare different breakers for "
                    f"{mine.dependency}. Give both the same Breaker object."
                )

    def schedule(self, declaration: Declaration) -> None:
        """Enter a schedule; its own module may do so again.

        Raises:
            HandlerError: another module has one of that name.
        """
        known = self.schedules.get(declaration.name)
        if known is not None and known.module != declaration.module:
            raise HandlerError(
                f"Schedule {declaration.name} is declared in {known.module} already. "
                f"Give the one in {declaration.module} another name."
            )
        self.schedules[declaration.name] = declaration

    def get(self, name: str) -> HandlerSpec | None:
        """Return the handler of this name, or None."""
        return self._specs.get(name)

    def is_async(self, name: str) -> bool:
        """Whether tasks of this name belong into an event loop."""
        spec = self._specs.get(name)
        return spec is not None and spec.is_async

    def __iter__(self) -> Iterator[HandlerSpec]:
        return iter(self._specs.values())

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in the order of declaration."""
        return tuple(self._specs)

    @property
    def queues(self) -> tuple[str, ...]:
        """``default`` and the queues of all handlers, without repeats."""
        return tuple(dict.fromkeys(["default", *(spec.queue for spec in self)]))


HANDLERS = Registry()
"""Where ``@handler`` enters. The one registry of a process, as Celery has one app."""


def handler(  # noqa: PLR0913  a declaration, all by keyword
    name: str,
    *,
    queue: str = "default",
    retry: str | Sequence[Duration] | RetryPolicy | None = None,
    max_attempts: int | None = None,
    timeout: Duration | None = None,
    hard_timeout: Duration | None = None,
    at_most_once: bool = False,
    on_error: Mapping[type[BaseException], str] | None = None,
    on_interrupt: str | None = None,
    depends_on: str | Breaker | None = None,
    dependency_errors: Sequence[type[BaseException]] = (),
    dependency_retry: str | Sequence[Duration] | RetryPolicy | None = None,
    dependency_limit: int | Duration | None = None,
    dependency_then: str = "retry",
    commit: str = "each",
    registry: Registry = HANDLERS,
    **when: Unpack[When],
) -> Callable[[Callable[P, R]], Handler[P, R]]:
    """Declare a function ``(ctx)`` or ``(ctx, payload)``, sync or async, as the handler of a name.

    A payload annotated with a pydantic model is validated when the task is created and when it
    runs; otherwise the handler gets a dict.

    Args:
        name: what tasks call it; keep it when the function moves.
        queue: where tasks of this name go unless they say otherwise.
        retry: the policy, such as ``"5s,30s,1m"``; default three attempts with growing waits.
        max_attempts: charged failures that lead to the error pool; default: the policy's.
        timeout: raised inside the handler after this long.
        hard_timeout: the child process is killed after this long; default one hour.
        at_most_once: always claimed alone; after a crash or an exception never run again.
        on_error: by exception class ``"retry"``, ``"fail"``, ``"retry_free"`` or ``"outage"``,
            which is what ``dependency_errors`` are; the nearest class in the ancestry of what was
            raised decides.
        on_interrupt: the same words for a run that a stopping worker cuts off when its grace is
            over; default ``"retry_free"``: again at once, on another worker, uncharged.
        depends_on: what a breaker stands before: when too many of its calls fail, all tasks that
            depend on it are held, uncharged, until some that are let through succeed.
        dependency_errors: classes that say that something else is down, as ``DependencyDown``
            does: again later, without charging a failure.
        dependency_retry: the waits between such attempts; default growing, up to five minutes.
        dependency_limit: how many of them (a number), or for how long since the first one;
            default two days.
        dependency_then: what comes after that: ``"retry"``, charged as any failure, or ``"fail"``.
        commit: ``"each"``: every task commits on its own. ``"batch"``: many fast tasks share a
            transaction; only for plain functions whose effects are all in ``ctx.session`` or
            ``ctx.connection``, because when one fails, all of them are rolled back and run again.
        registry: for tests.
        when: with ``cron=``, ``every=`` or ``at=`` the handler has a schedule of its own name;
            ``schedule()`` says what else there is, and gives its tasks a payload.

    Raises:
        HandlerError: the declaration cannot work.
    """
    if max_attempts is not None and not 1 <= max_attempts <= MOST_ATTEMPTS:
        raise HandlerError(f"max_attempts of {name!r} is not an integer 1 .. {MOST_ATTEMPTS}.")
    if commit not in {"each", "batch"}:
        raise HandlerError(f'commit={commit!r} of {name!r} is neither "each" nor "batch".')
    if commit == "batch" and (depends_on or dependency_errors):
        raise HandlerError(
            f'{name!r} says commit="batch" and that it depends on something. Use commit="each": '
            "the effects of a batch are all in its database."
        )
    if commit == "batch" and at_most_once:
        raise HandlerError(
            f'{name!r} is at_most_once and says commit="batch". Use commit="each": '
            "when a batch is rolled back, its handlers run again."
        )
    if at_most_once and on_interrupt is not None:
        raise HandlerError(
            f"{name!r} is at_most_once and says on_interrupt. Leave on_interrupt out: "
            "a run that is cut off goes to the error pool, its outcome unknown."
        )

    if at_most_once and dependency_errors:
        raise HandlerError(
            f"{name!r} is at_most_once and says dependency_errors. Raise DependencyDown where "
            "nothing can have happened: an error may come after the effect."
        )
    rules = _rules(name, on_error or {}, dependency_errors)
    outage = _outage_rule(name, dependency_retry, dependency_limit, dependency_then)

    def declare(function: Callable[P, R]) -> Handler[P, R]:
        policy = _checked(lambda: parse_policy(retry), name) if retry else DEFAULT_POLICY
        takes_payload, payload_type = signature_of(function)
        is_async = inspect.iscoroutinefunction(function)
        if commit == "batch" and is_async:
            raise HandlerError(
                f'{name!r} is a coroutine function and says commit="batch". Use commit="each", '
                "or a plain function: batches are run one after the other."
            )
        spec = HandlerSpec(
            name=_checked(lambda: check_name(name), name),
            function=function,
            queue=_checked(lambda: check_queue(queue), name),
            retry=policy,
            max_attempts=policy.max_attempts if max_attempts is None else max_attempts,
            timeout=_span(timeout, name),
            hard_timeout=_span(hard_timeout, name),
            at_most_once=at_most_once,
            on_error=rules,
            outage=outage,
            depends_on=_breaker(name, depends_on),
            on_interrupt=_checked(lambda: _interrupt(on_interrupt), name),
            payload_type=payload_type,
            takes_payload=takes_payload,
            is_async=is_async,
            batched=commit == "batch",
        )
        registry.add(spec)
        if when:
            from tasks_app.domain.declaration import declare as declared  # noqa: PLC0415  as rare

            words: dict[str, Any] = {**when}
            module = function.__module__
            registry.schedule(_checked(lambda: declared(name, NewTask(name), words, module), name))
        return Handler(spec, function)

    return declare


def load_handlers(modules: Iterable[str]) -> None:
    """Import the modules that declare handlers.

    Raises:
        ConfigurationError: one does not exist; errors inside a module come out as they are.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not module.startswith(error.name):
                raise
            raise ConfigurationError(
                f"TASKS_APP_IMPORTS names {module}, which cannot be found. "
                "Check the spelling and that its folder is on PYTHONPATH."
            ) from error


T = TypeVar("T")


def _checked(make: Callable[[], T], name: str) -> T:
    try:
        return make()
    except (InvalidTaskError, ValueError) as error:
        raise HandlerError(f"Handler {name!r} is declared wrongly: {error}") from None


def _breaker(name: str, depends_on: str | Breaker | None) -> Breaker | None:
    return None if depends_on is None else _checked(lambda: check_breaker(depends_on), name)


def _interrupt(word: str | None) -> Reaction:
    reaction = Reaction(word or Reaction.RETRY_FREE)
    if reaction is Reaction.OUTAGE:
        raise ValueError("on_interrupt is 'outage', but nothing else is down then")
    return reaction


def _rules(
    name: str,
    on_error: Mapping[type[BaseException], str],
    dependency_errors: Sequence[type[BaseException]],
) -> dict[type[BaseException], Reaction]:
    rules = {kind: _reaction(kind, word, name) for kind, word in on_error.items()}
    for kind in dependency_errors:
        outage = _reaction(kind, Reaction.OUTAGE, name)
        if rules.setdefault(kind, outage) is not outage:
            raise HandlerError(f"{name!r} has {kind.__name__} in dependency_errors and on_error.")
    return rules


def _reaction(kind: Any, word: str, name: str) -> Reaction:
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        raise HandlerError(f"on_error of {name!r} has the key {kind!r}, which is no exception.")
    return _checked(lambda: Reaction(word), name)


def _outage_rule(
    name: str,
    retry: str | Sequence[Duration] | RetryPolicy | None,
    limit: int | Duration | None,
    then: str,
) -> OutageRule:
    rule = OutageRule()
    if then not in {Reaction.RETRY, Reaction.FAIL}:
        raise HandlerError(f'dependency_then={then!r} of {name!r} is neither "retry" nor "fail".')
    most, longest = rule.most, rule.longest
    if limit is not None:
        most, longest = _checked(lambda: parse_limit(limit), name)
    policy = _checked(lambda: parse_policy(retry), name) if retry else rule.retry
    return OutageRule(policy, most, longest, Reaction(then))


def _span(value: Duration | None, name: str) -> timedelta | None:
    if value is None:
        return None
    span = _checked(lambda: parse_duration(value), name)
    if not span:
        raise HandlerError(f"Handler {name!r} is declared with a limit of 0 s. Leave it out.")
    return span


def _where(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"
