"""``python -m benchmarks run | report | gate``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.run import Choice, run


def main() -> int:
    """Carry out one command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_run(commands.add_parser("run", help="measure, and keep every run as a line of JSON"))
    options = parser.parse_args()
    return run(
        Choice(
            scenarios=_names(options.scenario),
            systems=_names(options.systems),
            rounds=options.rounds,
            n=options.n,
            quick=options.quick,
        ),
        options.output,
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scenario", help="names, separated by commas; default: all")
    parser.add_argument("--systems", help="names, separated by commas; default: all")
    parser.add_argument("--rounds", type=int, help="default: 5, 1 with --quick")
    parser.add_argument("--n", type=int, help="tasks, instead of the plan's number")
    parser.add_argument("--quick", action="store_true", help="the main rows, with a fifth of it")
    parser.add_argument("--output", type=Path, help="default: benchmarks/results/<date>-<commit>")


def _names(given: str | None) -> frozenset[str]:
    return frozenset((given or "").split(",")) - {""}


if __name__ == "__main__":
    sys.exit(main())
