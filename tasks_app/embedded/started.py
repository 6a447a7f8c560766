"""What a server tells of itself once it answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server says it is: asked for Valkey, it may be Redis."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class Started:
    """What came up; printed, it is the line for the terminal."""

    name: str
    version: str
    seconds: float
    port: int
    pid: int
    data: str

    def __str__(self) -> str:
        return f"{self.name} {self.version} ready in {self.seconds:.1f} s"
