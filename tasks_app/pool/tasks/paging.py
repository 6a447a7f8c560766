"""Paging: a user's SELECT, page by page after a key; no OFFSET, never the whole result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Dialect,
    Executable,
    Integer,
    Select,
    bindparam,
    or_,
    text,
    tuple_,
)
from sqlalchemy.types import TypeEngine, UserDefinedType

from tasks_app.domain.partition.keys import KeysetKey

_AFTER, _MOST = "tasks_app_after_", "tasks_app_most"


class _AsIs(UserDefinedType[Any]):
    """A type whose values are not cast to the declared type, but compared in the column's type."""

    # Otherwise a timestamptz declared without its zone, or a citext declared as text, loses rows.

    cache_ok = True

    def __init__(self, declared: TypeEngine[Any]) -> None:
        self.declared = declared

    def bind_processor(self, dialect: Dialect) -> Any:
        return self.declared.dialect_impl(dialect).bind_processor(dialect)


class Paged:
    """A SELECT, of SQLAlchemy or as text, and the columns of its key."""

    def __init__(
        self, statement: Any, key: Any, parameters: Mapping[str, Any] | None = None
    ) -> None:
        """Check what can be checked without the database.

        Raises:
            TypeError: it is not a SELECT, or the key is not one.
            ValueError: it has a limit, which would limit each page.
        """
        self._keys: tuple[Any, ...] = tuple(key) if isinstance(key, list | tuple) else (key,)
        self._parameters = dict(parameters or {})
        self._pages: dict[bool, Executable] = {}  # of the first page, and of those after a key
        if not self._keys:
            raise TypeError("key names no column. Name those that are unique together.")
        if isinstance(statement, str):
            self._text: str | None = statement.strip().rstrip(";")
            if not all(isinstance(each, str) for each in self._keys):
                raise TypeError("A SELECT as text needs the names of its key's columns as text.")
        elif isinstance(statement, Select):
            self._text, self._select = None, statement
            clauses = ("_limit_clause", "_offset_clause")  # there are no public ones
            if any(getattr(statement, name, None) is not None for name in clauses):
                raise ValueError(
                    "The statement has a LIMIT or OFFSET. Leave it out; size= limits a page."
                )
        else:
            raise TypeError(
                f"A {type(statement).__name__} cannot be paged. Pass a select(), or SQL as text."
            )

    @property
    def of_entities(self) -> bool:
        """Whether it selects objects of one class, and nothing else."""
        if self._text is not None:
            return False
        described = self._select.column_descriptions
        return len(described) == 1 and described[0]["expr"] is described[0].get("entity")

    @property
    def of_classes(self) -> bool:
        """Whether only a session understands it."""
        if self._text is not None:
            return False
        return any(each.get("entity") is not None for each in self._select.column_descriptions)

    def page(self, after: KeysetKey | None, most: int) -> tuple[Executable, dict[str, Any]]:
        """Return the statement of the next rows after ``after``, and its values."""
        behind = after is not None
        if behind not in self._pages:  # making one takes longer than reading a small page
            make = self._page_of_select if self._text is None else self._page_of_text
            self._pages[behind] = make(behind=behind)
        values = {f"{_AFTER}{n}": value for n, value in enumerate(after or ())}
        return self._pages[behind], {**self._parameters, **values, _MOST: most}

    def nulls(self) -> tuple[Executable, dict[str, Any]]:
        """Return the statement that finds a row without a key."""
        if self._text is None:
            missing = or_(*(column.is_(None) for column in self._columns()))
            return self._select.order_by(None).where(missing).limit(1), self._parameters
        missing_text = " OR ".join(f"{name} IS NULL" for name in self._names())
        return self._around(f"WHERE {missing_text} LIMIT 1"), self._parameters

    def key_of(self, row: Any) -> KeysetKey:
        """Return the key of a row, or of an object.

        Raises:
            ValueError: the key is not among what is selected.
        """
        try:
            if self.of_entities:
                return tuple(
                    getattr(row, each if isinstance(each, str) else each.key) for each in self._keys
                )
            return tuple(row._mapping[each] for each in self._keys)  # noqa: SLF001  its public name
        except (KeyError, AttributeError):
            raise ValueError("The statement does not select the key. Add it.") from None

    def _columns(self) -> Sequence[ColumnElement[Any]]:
        return [
            self._select.selected_columns[each] if isinstance(each, str) else each
            for each in self._keys
        ]

    def _names(self) -> list[str]:
        return ['tasks_app_rows."' + name.replace('"', '""') + '"' for name in self._keys]

    def _page_of_select(self, *, behind: bool) -> Executable:
        columns = self._columns()
        statement = self._select.order_by(None).order_by(*columns)
        if behind:
            after = [bindparam(f"{_AFTER}{n}", type_=_AsIs(c.type)) for n, c in enumerate(columns)]
            further = (
                columns[0] > after[0] if len(after) == 1 else tuple_(*columns) > tuple_(*after)
            )
            statement = statement.where(further)
        return statement.limit(bindparam(_MOST, type_=Integer()))

    def _page_of_text(self, *, behind: bool) -> Executable:
        names = ", ".join(self._names())
        after = ", ".join(f":{_AFTER}{n}" for n in range(len(self._keys)))
        further = f"WHERE ({names}) > ({after}) " if behind else ""
        return self._around(f"{further}ORDER BY {names} LIMIT :{_MOST}")

    def _around(self, rest: str) -> Executable:
        return text(f"SELECT * FROM ({self._text}) AS tasks_app_rows {rest}")
