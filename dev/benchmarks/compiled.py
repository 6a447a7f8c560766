"""An environment whose play is compiled: Go, whose toolchain comes as a pinned package."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from dev.benchmarks.environments import PEERS, Virtual, output, run


@dataclass(frozen=True, slots=True)
class Go:
    """A program from ``peers/<name>/*.go``, ``go.mod`` and ``go.sum``.

    Its modules come from a module proxy, which not every machine reaches.
    """

    name: str
    modules: tuple[str, ...]

    @property
    def _toolchain(self) -> Virtual:
        return Virtual(self.name, ())

    @property
    def _program(self) -> Path:
        return self._toolchain.folder / "play"

    def ensure(self) -> None:
        """Build it, again when its sources or pins have changed.

        Raises:
            MissingError: the toolchain, or a module, cannot be had here.
        """
        self._toolchain.ensure()
        sources = PEERS / self.name
        files = sorted([*sources.glob("*.go"), *sources.glob("go.*")])
        digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
        note = self._toolchain.folder / ".sources"
        if note.exists() and note.read_text() == digest:
            return
        print(f"building {self.name} (once) ...", flush=True)
        where = ["-C", str(sources), "-o", str(self._program), "."]
        fault = "cannot be built here; it needs a Go module proxy"
        run(self.program("go", "build", *where), self.name, fault)
        note.write_text(digest)

    def play(self, *arguments: str) -> list[str]:
        return [str(self._program), *arguments]

    def program(self, name: str, *arguments: str) -> list[str]:
        return self._toolchain.program(name, *arguments)

    def versions(self) -> dict[str, str]:
        pinned = (PEERS / self.name / "go.mod").read_text()
        found = {"go": output(self.program("go", "version")).split()[2].removeprefix("go")}
        for module in self.modules:
            name = re.sub(r"/v\d+$", "", module).rpartition("/")[2]
            [found[name]] = re.findall(rf"{module} v(\S+)", pinned)
        return found
