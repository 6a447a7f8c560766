"""Who wanted an action, and why: for the audit and the log of transitions."""

from __future__ import annotations

from typing import NamedTuple

from tasks_app.domain.errors import InvalidSelectionError, InvalidTaskError
from tasks_app.domain.tasks.payload_checks import check_text

LONGEST_WHY = 500


class Author(NamedTuple):
    """Empty: nobody said."""

    who: str = ""
    why: str = ""

    @property
    def reason(self) -> dict[str, str]:
        """Return what the audit keeps beside the action."""
        return {"why": self.why} if self.why else {}


NOBODY = Author()


class Signed(str):
    """A name that brings along why, through verbs that take a name alone."""

    __slots__ = ("why",)
    why: str


def signed(who: str, why: str) -> Signed:
    """Return the name.

    Raises:
        InvalidSelectionError: the reason is no text that can be stored.
    """
    name = Signed(who)
    name.why = author(who, why).why
    return name


def author(who: str, why: str) -> Author:
    """Return who and why.

    Raises:
        InvalidSelectionError: the reason is no text that can be stored.
    """
    try:
        return Author(who, check_text(why, "why")[:LONGEST_WHY] if why else "")
    except InvalidTaskError as error:
        raise InvalidSelectionError(str(error)) from None
