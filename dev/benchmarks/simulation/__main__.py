"""``python -m dev.benchmarks.simulation measure costs|checks [FIRST LAST]`` or ``page``."""

from __future__ import annotations

import argparse

from dev.benchmarks.simulation.measure import measure
from dev.benchmarks.simulation.page import write


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m dev.benchmarks.simulation", description=__doc__
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    measuring = verbs.add_parser("measure", help="append to measured.jsonl (minutes)")
    measuring.add_argument("only", choices=("probe", "costs", "checks"))
    measuring.add_argument("first", type=int, nargs="?", default=0)
    measuring.add_argument("last", type=int, nargs="?", default=None)
    verbs.add_parser("page", help="write the model's part of docs/scaling.md")
    options = parser.parse_args()
    if options.verb == "page":
        write()
    else:
        measure(options.only, slice(options.first, options.last))


if __name__ == "__main__":
    main()
