"""The settings of encryption: whose values are encrypted, and by which keys."""

from __future__ import annotations

from tasks_app.domain.config.field_types import EncryptedTasks, EncryptionKeys, MaskedPaths
from tasks_app.domain.config.framework_settings import LayeredSettings


class EncryptionSettings(LayeredSettings):
    """A part of ``Settings``."""

    encrypted_tasks: EncryptedTasks = ""
    """Tasks whose payload, result and errors are stored encrypted, by name or queue:
    `patient.*,queue:health`. Producers and workers need the same. `@handler(encrypt=True)` says it
    of one handler."""
    encryption_keys: EncryptionKeys | None = None
    """`id:key,id:key`, each key 32 bytes as base64: the first encrypts, all decrypt.
    `tasks-app encryption new-key` makes one."""
    encryption_keys_file: str | None = None
    """A file with the same, a key a line. It is read again when a key is missing."""
    encryption_keys_from: str = ""
    """`module:function` that returns the same text, or a dict of ids and keys: for a vault."""
    masked_paths: MaskedPaths = ""
    """Paths of payloads and results that nobody is shown: `card.number,mail.*:**.password`. Workers
    mask these values in the texts of errors, too."""

    @property
    def encrypted(self) -> tuple[str, ...]:
        return tuple(each.strip() for each in self.encrypted_tasks.split(",") if each.strip())
