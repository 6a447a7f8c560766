"""``python -m torture [--seed N] [--tasks N]``: exit 0 if nothing was lost and nothing doubled."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from pathlib import Path

from torture.run import Plan, run


def main() -> int:
    """Run once and print the report."""
    options = _options()
    plan = Plan(options.seed, options.tasks, options.lease, options.spread, options.quiet)
    folder = Path(tempfile.mkdtemp(prefix="tasks_app-torture-"))
    print(f"torture: seed {plan.seed}, {plan.tasks} tasks, lease {plan.lease_s:g} s, in {folder}")
    started = time.monotonic()
    report = run(plan, folder)
    print(f"\nfaults in {time.monotonic() - started:.0f} s:")
    for what, number in (*sorted(report.world.counts.items()), *report.remarks):
        print(f"  {number:>6}  {what}")
    print()
    for check in report.checks:
        print(f"  {'ok ' if check.holds else 'BAD'}  {check.sentence}: {check.figure}")
    passed = all(check.holds for check in report.checks)
    print(f"\n{'PASSED' if passed else 'FAILED'}  replay: python -m torture --seed {plan.seed}")
    return 0 if passed else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m torture", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--lease", type=float, default=3.0, help="seconds; short, to see more")
    parser.add_argument(
        "--spread", type=float, default=110.0, help="seconds of creating and killing"
    )
    parser.add_argument("--quiet", type=float, default=60.0, help="seconds for the rest")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
