"""The words of libpq, and of servers that refuse, as one sentence with its cause."""

from __future__ import annotations

import pytest

from tasks_app.domain.config.unreachable import why_unreachable

AT = 'connection failed: connection to server at "127.0.0.1", port 5432 failed: '
REFUSED = f"""{AT}Connection refused
\tIs the server running on that host and accepting TCP/IP connections?"""
SOCKET = """connection is bad: connection to server on socket "/tmp/x/.s.PGSQL.5432" failed: \
No such file or directory
\tIs the server running locally?"""
BOUNCER = "as PgBouncer in transaction mode does"
NO_TLS = 'host "10.0.0.1", user "shop", database "shop"'
MANY = f"""{REFUSED}
Multiple connection attempts failed. All failures were:
- host: 'localhost', port: '5432', hostaddr: '::1': connection failed: role "x" does not exist"""


@pytest.mark.parametrize(
    ("said", "fact", "away"),
    [
        (REFUSED, "at 127.0.0.1:5432 does not answer: Connection refused", True),
        (MANY, "at 127.0.0.1:5432 does not answer: Connection refused", True),
        (
            SOCKET,
            "at /tmp/x/.s.PGSQL.5432 does not answer: No such file or directory",
            True,
        ),
        (
            "failed to resolve host 'db.invalid': [Errno -2] Name or service not known",
            "is on host db.invalid, which has no address",
            True,
        ),
        (
            f'{AT}FATAL:  database "a\nERROR \x1b[2J" does not exist',
            r'server at 127.0.0.1:5432 has no database "a\nERROR \x1b[2J"',
            False,
        ),
        (
            f'{AT}FATAL:  password authentication failed for user "shop"',
            'at 127.0.0.1:5432 refuses role "shop": password authentication failed',
            False,
        ),
        (f"{AT}fe_sendauth: no password supplied", "at 127.0.0.1:5432 asks for a password", False),
        (
            f'{AT}FATAL:  role "shop" does not exist',
            'at 127.0.0.1:5432 has no role "shop" that may log in',
            False,
        ),
        (
            f'{AT}FATAL:  database "shop" does not exist',
            'server at 127.0.0.1:5432 has no database "shop"',
            False,
        ),
        (
            f"{AT}FATAL:  no pg_hba.conf entry for {NO_TLS}, no encryption",
            f"at 127.0.0.1:5432 requires TLS from here ({NO_TLS})",
            False,
        ),
        (
            f"{AT}server does not support SSL, but SSL was required",
            "at 127.0.0.1:5432 does not support TLS, but sslmode requires it",
            False,
        ),
        (
            f"{AT}SSL error: certificate verify failed",
            "at 127.0.0.1:5432 cannot be trusted: SSL error: certificate verify failed",
            False,
        ),
        (
            f"{AT}FATAL:  sorry, too many clients already",
            "at 127.0.0.1:5432 has no connection left",
            True,
        ),
        (
            f"{AT}FATAL:  the database system is starting up",
            "at 127.0.0.1:5432 is starting up",
            True,
        ),
        (
            'connection is bad: invalid port number: "99999"',
            'cannot be reached: invalid port number: "99999"',
            False,
        ),
        (
            'invalid connection option "foo"\n',
            'cannot be reached: invalid connection option "foo"',
            False,
        ),
        (
            'invalid URI query parameter: "foo"',
            'cannot be reached: invalid URI query parameter: "foo"',
            False,
        ),
        (
            f"{AT}FATAL:  unsupported startup parameter: options",
            f"at 127.0.0.1:5432 refuses the startup parameter options, {BOUNCER}",
            False,
        ),
        (
            f"{AT}FATAL:  unsupported startup parameter in options: jit",
            f"at 127.0.0.1:5432 refuses the startup parameter jit, {BOUNCER}",
            False,
        ),
        ("connection timeout expired", "does not answer: timeout expired", True),
        # A server that speaks another language, or says what we do not know.
        (
            f"{AT}FATAL:  Rolle »shop« existiert nicht",
            "at 127.0.0.1:5432 refuses: Rolle »shop« existiert nicht",
            True,
        ),
        (
            "consuming input failed: server closed the connection unexpectedly",
            "does not answer: server closed the connection unexpectedly",
            True,
        ),
        ("", "does not answer", True),
    ],
)
def test_each_cause_is_said(said: str, fact: str, away: bool) -> None:
    why = why_unreachable(said)

    assert (why.fact, why.away) == (fact, away)
    assert str(why) == f"The database {fact}. {why.advice}"
    assert "\n" not in str(why)
