"""Secrecy: which runs are of encrypted tasks, and what is encrypted before it is written."""

from __future__ import annotations

from typing import Protocol

from tasks_app.domain.encryption.envelope import BEGIN, HIDDEN, token_in
from tasks_app.domain.encryption import MissingKeyError
from tasks_app.domain.encryption import SealBrokenError
from tasks_app.domain.handlers.outcomes import Fail
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.large_values import reference as references
from tasks_app.domain.tasks.erased import is_erased
from tasks_app.domain.tasks.run import Cause, ClaimedTask
from tasks_app.runtime.encryption.encryption import PAYLOAD, RESULT, Encryption

LARGE = references.BEGIN
STORED = (BEGIN, LARGE)
"""Payloads that may be encrypted begin so."""
_ERASED = "The payload was erased, so the task cannot run."


class _Run(Protocol):
    """What is needed of a run."""

    task: ClaimedTask


class Secrecy:
    """One child's."""

    def __init__(self, encryption: Encryption) -> None:
        self._encryption = encryption
        self.listed = bool(encryption.patterns)
        """Whether the settings encrypt any tasks."""
        encryption.keyring  # noqa: B018  what is wrong with the keys is said at the start

    def covers(self, task: ClaimedTask, spec: HandlerSpec) -> bool:
        """Whether handler or settings say so, or the task's payload is encrypted."""
        if spec.encrypted or token_in(task.payload) is not None:
            return True
        reference = references.reference_in(task.payload)
        if reference is not None and reference.encrypted:
            return True
        return self.listed and self._encryption.asks(task.name, task.queue)

    def begin(self, task: ClaimedTask, spec: HandlerSpec) -> bool:
        """Return whether what comes of a run is to be encrypted.

        Raises:
            MissingKeyError: it is, and there is no key for that.
        """
        secret = self.covers(task, spec)
        if secret and not self._encryption.has_key():
            raise MissingKeyError(None)
        return secret

    def payload(self, run: _Run, text: str) -> str:
        """Return the payload of a run, JSON text, as the handler is to have it.

        Raises:
            MissingKeyError: its key is not here.
            Fail: it was erased, or cannot be decrypted, wherever it runs.
        """
        if is_erased(text):
            raise Fail(_ERASED)
        if not text.startswith(BEGIN) or token_in(text) is None:
            return text
        run.task = run.task._replace(payload=text)  # known from now on, even of a large one
        try:
            return self._encryption.opened(text, PAYLOAD, run.task.name)
        except SealBrokenError as error:
            raise Fail(str(error)) from None

    def new_payload(self, text: str, name: str) -> str:
        return self._encryption.sealed(text, PAYLOAD, name)

    def result(self, text: str, name: str) -> str:
        return self._encryption.sealed(text, RESULT, name)

    def cause(self, cause: Cause, name: str) -> Cause:
        """Return a cause whose text is encrypted; without a key, which went away, it is lost."""
        if cause.message == _ERASED:
            return cause  # no secret, and what an operator has to know
        try:
            return self._encryption.hidden(cause, name)
        except MissingKeyError:
            return Cause(cause.kind, HIDDEN, cause.traceback)
