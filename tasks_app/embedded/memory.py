"""What a server keeps from one start to the next: its port and its password."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from tasks_app.embedded.errors import EmbeddedError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Memory:
    """The password has letters and digits only, so it needs no quoting."""

    port: int | None = None
    password: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)


def recall(path: Path) -> Memory:
    """Read what was stored; without a file, make a new password."""
    try:
        return Memory(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Memory()
    except (OSError, ValueError, TypeError) as error:
        raise EmbeddedError(
            f"The file {path} cannot be read: {error}. "
            "Make it readable, or remove its folder to start from nothing."
        ) from error


def remember(path: Path, memory: Memory) -> None:
    write_private(path, json.dumps(asdict(memory)))


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically by one that only its owner can read."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)
