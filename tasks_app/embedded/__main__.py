"""``python -m tasks_app.embedded FOLDER``: a supervisor, for ``up`` and for init systems."""

from __future__ import annotations

import argparse
import logging
import os
import sys

from tasks_app.embedded.detached import READY
from tasks_app.embedded.errors import EmbeddedError
from tasks_app.embedded.home import DEFAULT_FOLDER
from tasks_app.embedded.supervisor import supervise


def main() -> int:
    """Run the servers until a signal arrives; report once whether they came up."""
    options = _parser().parse_args()
    if options.detach:
        _leave_the_terminal()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        supervise(
            options.folder,
            persist=not options.forget,
            on_up=lambda _: _report(options.report, READY),
        )
    except EmbeddedError as error:
        logging.getLogger(__name__).error("%s", error)  # noqa: TRY400  the message is enough
        _report(options.report, str(error))
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tasks_app.embedded", description=__doc__)
    parser.add_argument("folder", nargs="?", default=DEFAULT_FOLDER)
    parser.add_argument("--forget", action="store_true", help="broker without persistence")
    parser.add_argument("--detach", action="store_true", help="return at once, run on")
    parser.add_argument("--report", type=int, help="descriptor to write the outcome to")
    return parser


def _leave_the_terminal() -> None:
    if os.fork() > 0:
        os._exit(0)
    os.setsid()


def _report(descriptor: int | None, outcome: str) -> None:
    if descriptor is not None:
        os.write(descriptor, outcome.encode())
        os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main())
