"""An action as one record.

From it come the command, the route and its entry in OpenAPI, the form on a page, the line of the
reference, and its cases in the security matrix.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass
from enum import IntEnum
from functools import cache
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints
from urllib.parse import quote

from annotated_types import Ge, Le
from pydantic import Field
from sqlalchemy import Connection


class Role(IntEnum):
    """Each may do what the ones before it may."""

    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3


@dataclass(frozen=True, slots=True)
class ActionResult:
    text: str
    """A sentence for the person who asked."""
    fields: Any = None
    """What the command prints as JSON. None: the answer is no, and it exits with 1."""
    changed: bool = True


@dataclass(frozen=True, slots=True)
class Param:
    """How people give a field: on the command line, in a form."""

    flag: str = ""
    """Such as ``--most``; a name in capitals is an argument. Empty: no command takes it."""
    help: str = ""
    label: str = ""
    """Empty: no form asks for it."""
    hint: str = ""
    """An example, shown while the field of a form is empty."""
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    required: bool = False
    """By the command; elsewhere the action says what is missing."""


def param(flag: str = "", help: str = "", default: Any = None, **more: Any) -> Any:  # noqa: A002  click's word
    """Return a field of a ``takes``; ``more`` as :class:`Param`."""
    return dataclasses.field(default=default, metadata={"param": Param(flag, help, **more)})


@dataclass(frozen=True, slots=True)
class Nothing:
    """No fields."""


Short = Annotated[str, Field(max_length=300)]


@dataclass(frozen=True, slots=True)
class Why:
    """Why, for the audit."""

    why: Short = param(
        "--why", "Why; audit, trail and `explain` show it.", "", label="Why", metavar="TEXT"
    )


Run = Callable[[Connection, Any, Any, str], ActionResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """What may be done, by whom, and where it is offered."""

    run: Run
    """``run(connection, target, given, by)``, in a transaction; its docstring is the help.

    ``target`` is None where ``on`` is empty, and ``given`` is a ``takes``.
    """
    role: Role
    """The least role; a command asks for none: it has the rights of its database role."""
    label: str
    """On its button."""
    path: str = ""
    """The route's, below ``/api`` in the API: ``/queues/{queue:path}/pause``. Empty: no route."""
    on: str = ""
    """The name of its target; an id's ends with ``_id``. Empty: ``takes`` says it."""
    command: str = ""
    """Its words behind ``tasks-app``. Empty: there is none, or it is written by hand."""
    takes: type = Nothing
    page: Callable[[Any], str] | None = None
    """The page that is shown next, by ``given``. None: the target's."""
    needs_handlers: bool = False
    """It reads what handlers declare."""

    @property
    def has_numeric_target(self) -> bool:
        return self.on.endswith("_id")

    @property
    def name(self) -> str:
        """The words of its path: ``queues/pause``."""
        return re.sub(r"{.*?}/", "", self.path).strip("/")

    def address(self, target: object = "") -> str:
        """Return the path of its route for a target."""
        return re.sub(r"{.*?}", lambda _: quote(str(target), safe=""), self.path)

    def next_page(self, target: object, given: Any) -> str:
        return self.page(given) if self.page else self.address(target).rpartition("/")[0]


def action(role: Role, label: str, path: str = "", **more: Any) -> Callable[[Run], Action]:
    """Make a record of a function; ``more`` as :class:`Action`."""
    found = re.search(r"{(\w+)", path)
    on = found[1] if found else ""
    return lambda run: Action(run=run, role=role, label=label, path=path, **{"on": on, **more})


def actions_of(module: ModuleType) -> Iterator[Action]:
    return (each for each in vars(module).values() if isinstance(each, Action))


class Taken(NamedTuple):
    """A field of a ``takes``."""

    name: str
    kind: type
    """Without None; the first of several."""
    is_many: bool
    """A list or a mapping; in a form one on each line."""
    param: Param
    required: bool
    least: int | None
    most: int | None


@cache
def taken(takes: type) -> tuple[Taken, ...]:
    """Return the fields of a ``takes``, the reason last."""
    hints = get_type_hints(takes, include_extras=True)
    found = []
    for field in dataclasses.fields(takes):
        kinds, notes = _split_hint(hints[field.name])
        bounds = {type(each): each for info in notes for each in getattr(info, "metadata", ())}
        least, most = bounds.get(Ge), bounds.get(Le)
        given = field.metadata.get("param", Param())
        found.append(
            Taken(
                field.name,
                kinds[0],
                not {list, dict}.isdisjoint(kinds),
                given,
                given.required or field.default is MISSING,
                least and int(str(least.ge)),
                most and int(str(most.le)),
            )
        )
    return tuple(sorted(found, key=lambda each: each.name == "why"))


def _split_hint(hint: Any) -> tuple[list[Any], list[Any]]:
    """Return the types that a hint allows, without None, and their annotations."""
    if get_origin(hint) is Annotated:
        inner, *more = get_args(hint)
        kinds, notes = _split_hint(inner)
        return kinds, [*notes, *more]
    if get_origin(hint) in (Union, UnionType):
        parts = [_split_hint(each) for each in get_args(hint) if each is not NoneType]
        return [kind for part in parts for kind in part[0]], [x for part in parts for x in part[1]]
    return [get_origin(hint) or hint], []
