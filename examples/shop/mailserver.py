"""A real SMTP server that fails now and then.

It counts what it accepts, by what a mail is about and its key.
"""

from __future__ import annotations

from collections import Counter
from email import message_from_bytes
from typing import Any

from aiosmtpd.controller import Controller

from tasks_app.embedded.process import HOST, choose_port

NOBODY = "nobody@nowhere.example"
"""Refused for ever."""
PATIENCE = "@patient.example"
"""Each mail to this domain is put off once."""
FAR_AWAY = "@faraway.example"
"""The line breaks after each first mail to this domain was accepted and before we hear of it."""


class MailServer:
    """Runs in a thread of the demo; on the same port whenever it is up."""

    def __init__(self) -> None:
        self.port = choose_port(None)
        self.accepted: Counter[tuple[str, str]] = Counter()
        """How often each (about, idempotency key) was accepted."""
        self.replies: Counter[int] = Counter()
        self._seen: set[str] = set()
        self._controller: Controller | None = None

    @property
    def address(self) -> str:
        """Where it is, for the workers."""
        return f"{HOST}:{self.port}"

    @property
    def is_up(self) -> bool:
        """Whether the port is open."""
        return self._controller is not None

    def up(self) -> None:
        """Open the port."""
        if self._controller is None:
            self._controller = Controller(
                self, hostname=HOST, port=self.port, server_hostname="mail.example"
            )
            self._controller.start()

    def down(self) -> None:
        """Close it, without waiting for anybody."""
        if self._controller is not None:
            self._controller.stop(no_assert=True)
            self._controller = None

    async def handle_RCPT(  # noqa: N802  aiosmtpd calls it by this name
        self, server: Any, session: Any, envelope: Any, address: str, options: Any
    ) -> str:
        """Judge a recipient."""
        del server, session, options
        if address == NOBODY:
            return self._say(550, "no such user here")
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        """Take a mail, or not."""
        del session
        mail = message_from_bytes(envelope.content)
        about, key, to = mail["X-About"], mail["Idempotency-Key"], envelope.rcpt_tos[0]
        first = key not in self._seen
        self._seen.add(key)
        if first and to.endswith(PATIENCE):
            return self._say(451, "come back later")
        self.accepted[about, key] += 1
        if first and to.endswith(FAR_AWAY):
            server.transport.abort()
        return self._say(250, "accepted")

    def _say(self, code: int, words: str) -> str:
        self.replies[code] += 1
        return f"{code} {words}"
