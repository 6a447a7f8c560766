"""A worker's child of the shop: ``python -m dev.documents.screenshots.worker NODE QUEUE …``."""

from __future__ import annotations

import linecache
import socket
import sys
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

from tasks_app import Settings
from tasks_app.runtime.worker.standalone import run_work

MODULE = "shop.handlers"
FILE = "/srv/shop/handlers.py"
"""As tracebacks show it: a path of this machine has no place in a picture."""
THREADS = 6


def load_shop() -> None:
    """Load the handlers as if the shop were installed."""
    source = Path(__file__).with_name("shop.py").read_text()
    spec = spec_from_loader(MODULE, loader=None)
    assert spec is not None  # noqa: S101
    module = module_from_spec(spec)
    sys.modules[MODULE] = module
    linecache.cache[FILE] = (len(source), None, source.splitlines(keepends=True), FILE)
    exec(compile(source, FILE, "exec"), module.__dict__)  # noqa: S102  our own file


def main(node: str, *queues: str) -> None:
    socket.gethostname = lambda: node
    load_shop()
    run_work(Settings(), queues=queues, threads=THREADS, handle_signals=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
