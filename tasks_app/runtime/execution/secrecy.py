"""Secrecy: which runs are of encrypted tasks, and what is encrypted before it is written."""

from __future__ import annotations

from tasks_app.domain.encryption.envelope import HIDDEN, token_in
from tasks_app.domain.encryption.keyring import MissingKeyError, SealBrokenError
from tasks_app.domain.handlers.outcomes import Fail
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.tasks.run import Cause, ClaimedTask
from tasks_app.runtime.encryption.encryption import PAYLOAD, RESULT, Encryption


class Secrecy:
    """One child's."""

    def __init__(self, encryption: Encryption) -> None:
        self._encryption = encryption
        encryption.keyring  # noqa: B018  what is wrong with the keys is said at the start

    def covers(self, task: ClaimedTask, spec: HandlerSpec) -> bool:
        """Whether handler or settings say so, or the task's payload is encrypted."""
        if spec.encrypted or token_in(task.payload) is not None:
            return True
        return bool(self._encryption.patterns) and self._encryption.asks(task.name, task.queue)

    def check_key(self) -> None:
        """Pass if there is a key to encrypt with.

        Raises:
            MissingKeyError: there is none.
        """
        if not self._encryption.has_key():
            raise MissingKeyError(None)

    def payload(self, text: str, name: str) -> str:
        """Return an encrypted payload as the handler is to have it.

        Raises:
            MissingKeyError: its key is not here.
            Fail: it cannot be decrypted, wherever it runs.
        """
        try:
            return self._encryption.opened(text, PAYLOAD, name)
        except SealBrokenError as error:
            raise Fail(str(error)) from None

    def new_payload(self, text: str, name: str) -> str:
        return self._encryption.sealed(text, PAYLOAD, name)

    def result(self, text: str, name: str) -> str:
        return self._encryption.sealed(text, RESULT, name)

    def cause(self, cause: Cause, name: str) -> Cause:
        """Return a cause whose text is encrypted; without a key, which went away, it is lost."""
        try:
            return self._encryption.hidden(cause, name)
        except MissingKeyError:
            return Cause(cause.kind, HIDDEN, cause.traceback)
