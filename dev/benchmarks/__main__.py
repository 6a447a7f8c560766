"""``python -m dev.benchmarks run | report | gate``."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from dev.benchmarks import report
from dev.benchmarks.against import against
from dev.benchmarks.gate import gate
from dev.benchmarks.run import Choice, run


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers are stopped, too
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    parser = argparse.ArgumentParser(prog="python -m dev.benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_run(commands.add_parser("run", help="measure, and keep every run as a line of JSON"))
    page = commands.add_parser("report", help="write docs/performance.md")
    page.add_argument("input", type=Path, nargs="*", help="default: the newest results")
    check = commands.add_parser("gate", help="has something become slower? (two minutes)")
    check.add_argument("--record", action="store_true", help="what is measured now is the norm")
    check.add_argument("--slower", type=float, default=1.0, help="try it: make no-op tasks slower")
    options = parser.parse_args()
    if options.command == "gate":
        return gate(record=options.record, slower=options.slower)
    if options.command == "report":
        return _report(options.input or report.newest())
    if options.against:
        return against(options.against, _choice(options))
    return run(_choice(options), options.output)


def _report(inputs: list[Path]) -> int:
    if not inputs:
        print("There are no results. Run make bench, or name files of results.", file=sys.stderr)
        return 1
    print(f"{report.write(inputs)}: written from {', '.join(path.name for path in inputs)}")
    return 0


def _choice(options: argparse.Namespace) -> Choice:
    return Choice(
        scenarios=_names(options.scenario),
        systems=_names(options.systems),
        rounds=options.rounds,
        n=options.n,
        quick=options.quick,
        minutes=options.minutes,
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scenario", help="names, separated by commas; default: all")
    parser.add_argument("--systems", help="names, separated by commas; default: all")
    parser.add_argument("--rounds", type=int, help="default: 5, 1 with --quick")
    parser.add_argument("--n", type=int, help="tasks, instead of the plan's number")
    parser.add_argument("--minutes", type=float, help="begin nothing after this many minutes")
    parser.add_argument("--quick", action="store_true", help="the main rows, with a fifth of it")
    parser.add_argument("--against", type=Path, help="by turns with this checkout; prints ratios")
    parser.add_argument("--output", type=Path, help="default: results/<date>-<commit>.jsonl")


def _names(given: str | None) -> frozenset[str]:
    return frozenset((given or "").split(",")) - {""}


if __name__ == "__main__":
    sys.exit(main())
