"""The handlers that this process knows."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, Unpack, overload

from tasks_app.domain.creation import NewTask
from tasks_app.domain.errors import ConfigurationError, HandlerError
from tasks_app.domain.handlers.spec import Handler, HandlerSpec, signature_of
from tasks_app.runtime.handlers.bulk import Item, alone
from tasks_app.runtime.handlers.context import AsyncTaskContext, TaskContext
from tasks_app.runtime.handlers.options import HandlerOptions, checked, fields_of, name_of, when_of

if TYPE_CHECKING:
    from tasks_app.domain.schedules.schedule import Declaration

PayloadT = TypeVar("PayloadT")
R = TypeVar("R")


class Registry:
    """Handlers by name."""

    any_encrypts: ClassVar[bool] = False  # of any registry; then producers check each name

    def __init__(self) -> None:
        self.specs: dict[str, HandlerSpec] = {}  # by name; producers read it for each task
        self.schedules: dict[str, Declaration] = {}  # that code declares, by name
        self.encrypted: set[str] = set()  # names of handlers that encrypt
        # Makes what calls plain handlers, instead of ``SyncLane`` and with its arguments: for a
        # framework whose ORM has its own connections.
        self.plain_lane: Callable[..., Any] | None = None

    def add(self, spec: HandlerSpec) -> None:
        """Add a handler; the same function may be added again, as on a re-import."""
        known = self.specs.get(spec.name)
        if known is not None and _where(known.function) != _where(spec.function):
            raise HandlerError(
                f"{spec.name} is handled by {_where(known.function)} already. "
                f"Give {_where(spec.function)} another name."
            )
        mine = spec.depends_on
        for other in self.specs.values():
            its = other.depends_on
            if mine and its and its.dependency == mine.dependency and its != mine:
                raise HandlerError(
                    f"{spec.name} and {other.name} declare different breakers for "
                    f"{mine.dependency}. Give both the same Breaker object."
                )
        self.specs[spec.name] = spec
        if spec.encrypted:
            self.encrypted.add(spec.name)
            Registry.any_encrypts = True

    def schedule(self, declaration: Declaration) -> None:
        """Add a schedule; its module may do so again."""
        known = self.schedules.get(declaration.name)
        if known is not None and known.module != declaration.module:
            raise HandlerError(
                f"Schedule {declaration.name} is declared in {known.module} already. "
                f"Give the one in {declaration.module} another name."
            )
        self.schedules[declaration.name] = declaration

    def get(self, name: str) -> HandlerSpec | None:
        return self.specs.get(name)

    def is_async(self, name: str) -> bool:
        spec = self.specs.get(name)
        return spec is not None and spec.is_async

    def __iter__(self) -> Iterator[HandlerSpec]:
        return iter(self.specs.values())

    @property
    def names(self) -> tuple[str, ...]:
        """In the order of declaration."""
        return tuple(self.specs)

    @property
    def queues(self) -> tuple[str, ...]:
        """``default`` and the queues of all handlers, without repeats."""
        return tuple(dict.fromkeys(["default", *(spec.queue for spec in self)]))


HANDLERS = Registry()  # of ``@handler``: one registry for each process, as Celery has one app


class Declare(Protocol):
    """What ``@handler(…)`` returns."""

    @overload
    def __call__(self, function: Callable[[TaskContext[Any]], R], /) -> Handler[None, R]: ...
    @overload
    def __call__(
        self, function: Callable[[TaskContext[Any], Sequence[Item[PayloadT]]], R], /
    ) -> Handler[PayloadT, R]: ...
    @overload
    def __call__(
        self, function: Callable[[TaskContext[Any], PayloadT], R], /
    ) -> Handler[PayloadT, R]: ...


@overload
def handler(function: Callable[[TaskContext[Any]], R], /) -> Handler[None, R]: ...
@overload
def handler(function: Callable[[TaskContext[Any], PayloadT], R], /) -> Handler[PayloadT, R]: ...
@overload
def handler(
    name: str | None = None, *, registry: Registry = ..., **options: Unpack[HandlerOptions]
) -> Declare: ...
def handler(
    name: Any = None, *, registry: Registry = HANDLERS, **options: Unpack[HandlerOptions]
) -> Any:
    """Declare a function ``(ctx)`` or ``(ctx, payload)``, sync or async, as a handler.

    The annotation checks a payload when its task is created and again when it runs: a model, a
    dataclass, a TypedDict, anything that pydantic can check and JSON can hold. Without an
    annotation, or with ``dict``, it is a dict. Type checkers know ``ctx.session`` where ``ctx`` is
    annotated as ``TaskContext``, in async functions as ``AsyncTaskContext``.

    >>> @handler("points.grant", retry="1m,10m,1h", timeout="30s")
    ... def grant_points(ctx: TaskContext, payload: dict) -> int:
    ...     return 10 * payload["orders"]
    >>> task_id = create_task(session, grant_points, {"orders": 2})

    Args:
        name: the name of its tasks. Keep it when the function moves. Without one, it is module and
            function, such as ``shop.mails.send``; then ``@handler`` needs no parentheses.
        registry: for tests.
        options: those of ``HandlerOptions``.

    Raises:
        HandlerError: the declaration cannot work.
    """
    if name is not None and not isinstance(name, str):
        return _declared(name, None, registry, options)
    if name is not None:
        fields_of(name, options)  # an error is raised where the option stands
    return lambda function: _declared(function, name, registry, options)


def _declared(
    function: Any, name: str | None, registry: Registry, options: HandlerOptions
) -> Handler[Any, Any]:
    is_bulk = options.get("at_once") is not None
    takes, kind = signature_of(function, TaskContext, AsyncTaskContext, Item if is_bulk else None)
    name = name_of(function) if name is None else name
    more: dict[str, Any] = {"bulk": function} if is_bulk else {}
    return declare_handler(
        function, name, registry, options, payload_type=kind, takes_payload=takes, **more
    )


def declare_handler(
    function: Any, name: str, registry: Registry, options: HandlerOptions, **more: Any
) -> Handler[Any, Any]:
    """Add a handler, and its schedule if it has one; ``more``: fields of the HandlerSpec."""
    fields = fields_of(name, options)
    is_async = inspect.iscoroutinefunction(function)
    called = alone(function) if "bulk" in more else function
    spec = HandlerSpec(**fields, function=called, is_async=is_async, **more)
    registry.add(spec)
    if when := when_of(options):
        from tasks_app.domain.schedules.schedule import declare  # noqa: PLC0415  as rare

        module = function.__module__
        registry.schedule(checked(name, lambda: declare(name, NewTask(name), when, module)))
    return Handler(spec, function)


def load_handlers(modules: Iterable[str]) -> None:
    """Import the modules that declare handlers. Errors inside a module pass through."""
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


def _where(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"
