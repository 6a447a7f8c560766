"""Statements of handlers: those that are forbidden, and those that are sent with the outcome."""

from __future__ import annotations

import re
from collections.abc import Coroutine, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple

import psycopg
from psycopg.adapt import Transformer
from sqlalchemy.util import await_only as await_

from tasks_app.domain.handlers.outcomes import Fail
from tasks_app.runtime.handler_db.driver_internals import LATE_WRITES

COMMITS_LATER = (
    "The handler's transaction commits together with the task's outcome; nothing else may commit "
    "or end it. Use ctx.session.rollback(), savepoints (begin_nested()), or ctx.commit() for what "
    "is to stand whatever becomes of the rest."
)
ENDED = (
    "The handler ended the transaction of ctx.session by itself: what it had written by then may "
    "stand without its outcome. Leave the end to the outcome, or use ctx.commit()."
)
ENDING_TAGS = frozenset({"COMMIT", "BEGIN", "START TRANSACTION", "PREPARE TRANSACTION"})
"""Command tags of what shows that a transaction was ended."""
UNDER_OWN = "_tasks_app_under_own_settings"
"""The attribute of an error that says whether its handler had SET something before."""
_BEGINNING = 300  # characters at the beginning of a statement that are searched for keywords
_SEARCHED = 10_000  # characters that are searched for comments before that
_ENDS = re.compile(
    r"\s*(commit|end|abort|rollback(?!\s+(work\s+|transaction\s+)?to\b)|prepare\s+transaction)\b",
    re.IGNORECASE,
)
_LASTS = re.compile(r"\A\s*load\b|\bdblink_connect\b", re.IGNORECASE)
_SETS = re.compile(r"\bset_config\b", re.IGNORECASE)
_COPIES = re.compile(r"[\s;]*copy\b", re.IGNORECASE)
_COMMENTS = re.compile(r"/\*(?:(?!/\*|\*/).)*\*/|--[^\n]*", re.DOTALL)
_QUOTED = re.compile(r"'[^'\\]*'|\"[^\"]*\"")
_UNCLEAR = re.compile(r"['\"$]")


def is_under_own_settings(error: BaseException) -> bool:
    """Whether a statement failed after its handler had SET something."""
    return getattr(getattr(error, "orig", None), UNDER_OWN, False)


def _beginning(statement: str) -> str:
    """Return it without comments, which may be nested."""
    before, statement = "", statement[:_SEARCHED]
    while statement != before:
        before, statement = statement, _COMMENTS.sub(" ", statement)
    return statement.lstrip()[:_BEGINNING]


@lru_cache(1024)
def ends_transaction(statement: str) -> bool:
    """Whether a string of one or more statements ends the transaction.

    If it has other than plain quotes, only its first statement is read: a semicolon may be part of
    a function's body.
    """
    beginning = _beginning(statement)
    if _ENDS.match(beginning):
        return True
    if ";" not in statement:
        return False
    bare = _COMMENTS.sub(" ", _QUOTED.sub("''", statement)).replace("''", "")
    return not _UNCLEAR.search(bare) and any(map(_ENDS.match, bare.split(";")))


@lru_cache(1024)
def stays_in_session(statement: str) -> bool:
    """Whether it leaves what no check finds and no reset undoes: libraries, dblink."""
    return _LASTS.search(_beginning(statement)) is not None


@lru_cache(1024)
def copies(statement: str) -> bool:
    return _COPIES.match(_beginning(statement)) is not None


def sets_something(statement: str) -> bool:
    """Whether it may change how the next statements are read, or their time limit."""
    return _SETS.search(statement) is not None


if LATE_WRITES.works:
    from psycopg._queries import PostgresQuery


MOST_NAMES = 200  # how many different statements are prepared; those of more are parsed each time
MOST_PROVEN = 1_000  # how many are remembered to be writes
_NO_PARAMETERS = (
    "The parameters of ctx.write are of type {kind}. "
    "Give a tuple or list for %s, a dict for %(name)s, and (value,) for one value."
)
_OTHER_NUMBER = (
    "ctx.write got {given} parameters for {places} %s. "
    "Write %s, or %(name)s for those of a dict, and give one for each."
)
_MISSING = "The parameters of ctx.write lack {names}. Give a value for each %(name)s."
_BY_NAME = "ctx.write takes a dict for %(name)s, and a tuple or list for %s. Give the other one."
_ODD_PLACE = (
    "The text of ctx.write has {place!r} in it. "
    "Write %s or %(name)s for a parameter, and %% for the sign itself."
)
_WRITES = re.compile(
    r"(INSERT|UPDATE|DELETE|MERGE|SELECT|CALL|DO|NOTIFY|LOCK|TRUNCATE|REFRESH|CREATE|ALTER|DROP"
    r"|COMMENT|GRANT|REVOKE)\b"
)
"""How the command tags of what may be sent begin."""
_ENDING_COMMANDS = ENDING_TAGS | {"ROLLBACK"}
_QUERY = "_tasks_app_query"
_PLACES = re.compile(r"%(?:%|\((?P<name>[^)]*)\)[sbt]|(?P<bare>[sbt])|(?P<odd>.|\Z))", re.DOTALL)
_names: dict[tuple[bytes, tuple[int, ...]], bytes] = {}
_numbers = count()
PROVEN: set[str] = set()
"""Texts that may be sent together with a COMMIT, before any answer is read.

A text does not tell what a statement is. By its command tag the server has, when it came alone.
"""


class Write(NamedTuple):
    """A statement, and what stands in its places."""

    query: str
    parameters: Sequence[Any] | Mapping[str, Any] | None

    def send(self, cursor: Any) -> None:
        """Send it by itself, wait for its answer, and refuse what does not write."""
        try:
            done = cursor.execute(*self)
            if isinstance(done, Coroutine):  # of a test's async session
                await_(done)
        except psycopg.Error as error:
            note_query(error, self)
            raise
        tags = [cursor.statusmessage or "empty"]
        while cursor.nextset():
            tags.append(cursor.statusmessage or "empty")
        if not _ENDING_COMMANDS.isdisjoint(tags):
            raise Fail(ENDED)
        if len(tags) > 1:
            raise RuntimeError(
                "ctx.write takes one statement, and this text has several. Call it once for each."
            )
        if not _WRITES.match(tags[0]):
            raise RuntimeError(
                "ctx.write takes one statement that writes, and the server calls this one "
                f"{tags[0]}. Send it through ctx.connection."
            )
        if not (sets_something(self.query) or stays_in_session(self.query)):
            if len(PROVEN) >= MOST_PROVEN:
                PROVEN.clear()
            PROVEN.add(self.query)


class Sent(NamedTuple):
    """The same in the words of libpq."""

    name: bytes  # under which it is prepared; empty: it is not
    sql: bytes
    types: Sequence[int]
    values: Sequence[Any] | None
    formats: Sequence[Any] | None


def note_query(error: psycopg.Error, write: Write) -> None:
    """Note in an error which statement failed."""
    setattr(error, _QUERY, write.query)


def query_of(error: psycopg.Error) -> str:
    """Return the text of the late write that failed; empty: it was something else."""
    return getattr(error, _QUERY, "")


def write_of(query: Any, parameters: Any) -> Write:
    """Return what a handler asks for.

    Raises:
        TypeError: it is no text, or these are no parameters of it.
        ValueError: it has a NUL, or parameters are missing or too many.
        RuntimeError: it would end the transaction, or is a COPY, which waits for more.
    """
    if not isinstance(query, str):
        raise TypeError(
            "ctx.write takes SQL text with %s or %(name)s, as psycopg does, not "
            f"{type(query).__name__}. "
            "Send statements of SQLAlchemy through ctx.session or ctx.connection."
        )
    if "\0" in query:
        raise ValueError("The text of ctx.write has a NUL in it, which SQL cannot hold. Remove it.")
    if ends_transaction(query):
        raise RuntimeError(COMMITS_LATER)
    if copies(query):
        raise RuntimeError(
            "ctx.write sends no COPY, which needs an answer. Use ctx.connection for it."
        )
    return Write(query, None if parameters is None else _checked(query, parameters))


def _checked(query: str, parameters: Any) -> tuple[Any, ...] | dict[str, Any]:
    """Return a copy, as the handler may change its own; raise in its line what is wrong."""
    bare, names = _places(query)
    if isinstance(parameters, Mapping):
        if bare:
            raise TypeError(_BY_NAME)
        if parameters and not names:
            raise ValueError(_OTHER_NUMBER.format(given=len(parameters), places=0))
        if not names <= parameters.keys():
            lacking = ", ".join(sorted(names - parameters.keys()))
            raise ValueError(_MISSING.replace("{names}", lacking))
        return dict(parameters)
    if isinstance(parameters, str | bytes) or not isinstance(parameters, Sequence):
        raise TypeError(_NO_PARAMETERS.replace("{kind}", type(parameters).__name__))
    if names:
        raise TypeError(_BY_NAME)
    if len(parameters) != bare:
        raise ValueError(_OTHER_NUMBER.format(given=len(parameters), places=bare))
    return tuple(parameters)


@lru_cache(MOST_NAMES)
def _places(query: str) -> tuple[int, frozenset[str]]:
    """Return the number of places without a name, and the names of the others.

    Raises:
        ValueError: a percent sign stands before something else.
    """
    bare, names = 0, set[str]()
    for place in _PLACES.finditer(query):
        if place["odd"] is not None:
            raise ValueError(_ODD_PLACE.replace("{place!r}", repr(place[0])))
        bare += place["bare"] is not None
        names |= {place["name"]} - {None}
    return bare, frozenset(names)


def sent_as(connection: psycopg.Connection[Any] | Any, write: Write) -> Sent:
    """Raise psycopg.Error if parameters are missing, or of types that psycopg does not know."""
    query = PostgresQuery(Transformer.from_context(connection))
    try:
        query.convert(write.query, write.parameters)
    except psycopg.Error as error:
        note_query(error, write)
        raise
    key = (query.query, tuple(query.types))
    name = _names.get(key, b"")
    if not name and len(_names) < MOST_NAMES:
        name = _names.setdefault(key, b"tasks_app writes %d" % next(_numbers))
    return Sent(name, query.query, query.types, query.params, query.formats)
