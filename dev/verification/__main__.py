"""`python -m dev.verification`: every configuration must hold, every mutant must be caught."""

from __future__ import annotations

import argparse
import sys

from dev.verification import configurations, mutants
from dev.verification.report import Total, run_configurations, run_mutants


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m dev.verification", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="run what has this in its name")
    parser.add_argument("--quick", action="store_true", help="a part that takes under a minute")
    parser.add_argument("--list", action="store_true", help="name everything, run nothing")
    return parser.parse_args()


def is_wanted(asked: argparse.Namespace, name: str, *, quick: bool) -> bool:
    if asked.names:
        return any(part in name for part in asked.names)
    return quick or not asked.quick


def summary(held: Total, caught: Total) -> str:
    return (
        f"{held.runs - held.unexpected} of {held.runs} configurations hold, "
        f"{caught.runs - caught.unexpected} of {caught.runs} mutants are caught: "
        f"{held.states + caught.states:,} states, {held.edges + caught.edges:,} edges, "
        f"{held.seconds + caught.seconds:.0f} s"
    )


def main() -> int:
    """Return 0 if every configuration holds and every mutant is caught."""
    asked = arguments()
    real = [c for c in configurations.ALL if is_wanted(asked, c.name, quick=c.quick)]
    broken = [m for m in mutants.ALL if is_wanted(asked, m.name, quick=m.quick)]
    if asked.list:
        for configuration in real:
            print(f"configuration  {configuration.name}")
        for mutant in broken:
            print(f"mutant         {mutant.name} ({mutant.hole})")
        return 0
    if not real and not broken:
        print("nothing has that in its name; --list names everything")
        return 2
    held = run_configurations(real)
    caught = run_mutants(broken)
    print(f"\n{summary(held, caught)}")
    return 1 if held.unexpected + caught.unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
