"""Why a database was not reached, or refused a statement, and what to do about it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tasks_app.domain.tasks.error_text import printable

URL = "TASKS_APP_DATABASE_URL"


@dataclass(frozen=True, slots=True)
class Unreachable:
    """``fact`` is a predicate of the subject "the database"."""

    fact: str
    advice: str
    away: bool = False  # True: it may pass by itself. False: something must be changed

    def __str__(self) -> str:
        return f"The database {self.fact}. {self.advice}"


_RUNS = f"Check {URL} and that it runs, or start an embedded one with: tasks-app up -d"
_TLS = f"Look at sslmode and sslrootcert in {URL}, and at the server's ssl."
_LIMITS = (
    "Raise max_connections or the CONNECTION LIMIT of its role or database, start fewer children, "
    "or put a pooler between."
)
# Messages of a server at its own limit, or the limit of a role or database.
TOO_MANY = "too many clients already", "remaining connection slots", "too many connections"
_LASTS, _PASSES = False, True
# A pattern of the message, the fact ({0} is the captured text), the advice, whether it may pass.
_CAUSES = (
    (
        r"(invalid (?:port|connection option|URI|\S+ value|integer value)[^\n]*)",
        *("cannot be reached: {0}", f"Correct {URL}.", _LASTS),
    ),
    (
        r"failed to resolve host '([^'\n]*)'|could not translate host name \"([^\"\n]*)\"",
        *("is on host {0}, which has no address", f"Check {URL}, or the DNS.", _PASSES),
    ),
    (
        r"password authentication failed for user (\"(?s:.*?)\")",
        "{at}refuses role {0}: password authentication failed",
        *(f"The role is unknown there, or its password is not the one in {URL}.", _LASTS),
    ),
    (
        r"no password supplied",
        *("{at}asks for a password", f"Put it into {URL}, or into ~/.pgpass.", _LASTS),
    ),
    (
        r"role (\"(?s:.*?)\") (?:does not exist|is not permitted to log in)",
        "{at}has no role {0} that may log in",
        *(f"Create it, or correct the user in {URL}.", _LASTS),
    ),
    (
        r"database (\"(?s:.*?)\") does not exist",
        *("server {at}has no database {0}", f"Create it, or correct the name in {URL}.", _LASTS),
    ),
    (
        r"permission denied for database (\"(?s:.*?)\")",
        "{0} does not let this role connect",
        *("Run: GRANT CONNECT ON DATABASE … TO …", _LASTS),
    ),
    (
        r"no pg_hba\.conf entry for ([^\n]*), (?:no encryption|SSL off)",
        "{at}requires TLS from here ({0})",
        *(f"Add ?sslmode=require to {URL}, or an entry to the server's pg_hba.conf.", _LASTS),
    ),
    (
        r"(?:no pg_hba\.conf entry for|pg_hba\.conf rejects connection for) ([^\n]*)",
        *("{at}refuses {0}", "Add an entry to the server's pg_hba.conf.", _LASTS),
    ),
    (
        r"server does not support SSL",
        *("{at}does not support TLS, but sslmode requires it", _TLS, _LASTS),
    ),
    (
        r"((?:root certificate file|certificate|SSL error|server certificate|SSL)[^\n]*)",
        *("{at}cannot be trusted: {0}", _TLS, _LASTS),
    ),
    (
        "|".join(TOO_MANY),
        *("{at}has no connection left", _LIMITS, _PASSES),
    ),
    (
        r"unsupported startup parameter(?: in options)?: (\S+)",
        "{at}refuses the startup parameter {0}, as PgBouncer in transaction mode does",
        *(f"Set TASKS_APP_PREPARE=off, and keep ?options= out of {URL}.", _LASTS),
    ),
    (r"the database system is ([^\n]*)", "{at}is {0}", "Try again in a moment.", _PASSES),
    (
        r"(Connection refused|No such file or directory|No route to host|timeout expired)",
        *("{at}does not answer: {0}", _RUNS, _PASSES),
    ),
)
_AT = re.compile(
    r'connection to server (?:at "([^"]*)"(?: \([^)]*\))?, port (\d+)|on socket "(.*)")'
)


def why_unreachable(message: str) -> Unreachable:
    """Interpret the message of libpq, or of a server that refuses the connection."""
    last = message.strip().partition("\nMultiple connection attempts failed")[0]
    place = _AT.search(last)
    at = "" if place is None else f"at {place[3] or f'{place[1]}:{place[2]}'} "
    for pattern, fact, advice, passes in _CAUSES:
        if match := re.search(pattern, last):
            named = next((group for group in match.groups() if group), "")
            shown = printable(fact.format(named.strip(), at=at), keep="")
            return Unreachable(shown, advice, passes)
    first = last.rpartition("failed: ")[2].partition("\n")[0].strip()
    at, words = printable(at, keep=""), printable(first, keep="")
    severity, spaces, refusal = words.partition(":  ")  # a server writes so in any language
    if spaces and " " not in severity:
        return Unreachable(
            f"{at}refuses: {refusal}", f"Check {URL}, and the server's log.", away=True
        )
    return Unreachable(f"{at}does not answer{words and f': {words}'}", _RUNS, away=True)


NOT_GRANTED = "42501"  # SQLSTATE: insufficient privilege
# Classes of SQLSTATEs: wrong data, a constraint, a limit of PostgreSQL, an error of PL/pgSQL. They
# recur at each try.
ROW_ERRORS = ("22", "23", "54", "P0")
PERMISSION_ADVICE = (
    "This database role may not do that. As owner of the tables, run: "
    "tasks-app grants KIND --role ROLE --apply"
)
READ_ONLY = (
    "This role can only read: the database is a standby, or default_transaction_read_only is on "
    "for the role or the database. Connect to the primary, or turn it off."
)
