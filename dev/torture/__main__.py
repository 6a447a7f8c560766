"""``python -m dev.torture``: all faults at once; ``python -m dev.torture matrix``: each kind alone.

Exit 0 if nothing was lost and nothing doubled.
"""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
import tempfile
import time
from pathlib import Path

from dev.torture import cancels, matrix
from dev.torture.failpoints import read
from dev.torture.faults import FAULTS
from dev.torture.kinds import together
from dev.torture.run import Plan, run
from dev.torture.surroundings import FOLDERS, NEWEST, Surroundings
from dev.torture.together import section
from dev.torture.world import World


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started ends, too
    options = _options()
    options.surroundings = Surroundings(options.postgres, options.pgbouncer, options.rabbitmq)
    if missing := options.surroundings.why_not():
        print(missing)
        return 2
    return _matrix(options) if options.command == "matrix" else _together(options)


def _together(options: argparse.Namespace) -> int:
    failpoints, draw = options.failpoints, cancels.draw if options.cancels else _draw
    if options.everything:
        kinds, failpoints = together(
            options.surroundings,
            engine=options.engine,
            rarer=options.rarer,
            batches=options.batches,
        )

        def draw(world: World) -> str:
            name, hurt = world.rng.choice(kinds)
            world.hurt(name, hurt)
            return name

    read(failpoints)
    plan = Plan(
        options.seed,
        options.tasks,
        options.lease,
        options.spread,
        options.quiet,
        failpoints,
        cancels=options.everything or options.cancels,
        cancels_running=options.cancels,
        engine=options.engine,
        jobs=options.batches,
        flows=options.flows,
        surroundings=options.surroundings,
        children=options.children,
        pause_s=tuple(options.pause),
    )
    folder = Path(tempfile.mkdtemp(prefix="tasks_app-torture-"))
    print(f"torture: seed {plan.seed}, {plan.tasks} tasks, lease {plan.lease_s:g} s, in {folder}")
    print(f"on {plan.surroundings.words}")
    started = time.monotonic()
    report = run(plan, folder, draw, lambda line: print(line, flush=True))
    seconds = time.monotonic() - started
    print(f"\nfaults in {seconds:.0f} s:")
    for what, number in (*sorted(report.world.counts.items()), *report.remarks):
        print(f"  {number:>6}  {what}")
    print()
    for check in report.checks:
        print(f"  {'ok ' if check.holds else 'BAD'}  {check.sentence}: {check.figure}")
    passed = "PASSED" if report.passed else "FAILED"
    command = " ".join(["python -m dev.torture", *sys.argv[1:]])
    print(f"\n{passed}  replay: {command}, seed {plan.seed}")
    if options.output:
        with options.output.open("a") as page:
            page.write(section(plan, report, seconds, command))
    return 0 if report.passed else 1


def _draw(world: World) -> str:
    fault = world.rng.choices(list(FAULTS), weights=[weight for weight, _ in FAULTS.values()])[0]
    world.hurt(fault, FAULTS[fault][1])
    return fault


def _matrix(options: argparse.Namespace) -> int:
    kinds = matrix.chosen(options.only, options.surroundings, batches=options.batches)
    if not kinds:
        print(
            f"No kind here has {options.only!r} in its name. Separate words by commas, as in "
            '--only "F11,F24".',
            file=sys.stderr,
        )
        return 2
    lines = []
    started = time.monotonic()
    for line in matrix.try_kinds(
        kinds,
        matrix.seeds(options.seeds, options.first_seed),
        options.jobs,
        options.surroundings,
        batches=options.batches,
    ):
        lines.append(line)
        print(
            f"{'ok ' if line.passed else 'BAD'} {line.kind.name}: seed {line.seed}, "
            f"{line.injections} times, {line.seconds:.0f} s",
            flush=True,
        )
        for check in line.report.checks:
            if not check.holds:
                print(f"      {check.sentence}: {check.figure}", flush=True)
        if options.minutes and time.monotonic() - started > 60 * options.minutes:
            print("no time for the rest")
            break
    if options.output:
        options.output.write_text(matrix.page(lines, options.surroundings))
    return 0 if all(line.passed for line in lines) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dev.torture", description=__doc__)
    parser.add_argument("command", nargs="?", choices=["all", "matrix"], default="all")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--lease", type=float, default=3.0, help="seconds; short, to see more")
    parser.add_argument(
        "--spread", type=float, default=110.0, help="seconds of creating and killing"
    )
    parser.add_argument(
        "--quiet", type=float, default=60.0, help="seconds that the rest may stand still"
    )
    parser.add_argument(
        "--failpoints",
        default="",
        help="for example 'claim.committed=kill@0.01; effect.before=cut'",
    )
    parser.add_argument(
        "--postgres", type=int, choices=FOLDERS, default=NEWEST, help="which version"
    )
    parser.add_argument("--pgbouncer", action="store_true", help="transaction mode, in between")
    parser.add_argument("--rabbitmq", action="store_true", help="a node of its own, as the broker")
    parser.add_argument("--everything", action="store_true", help="all kinds at once")
    parser.add_argument("--rarer", type=float, default=20, help="failpoints, than in the matrix")
    parser.add_argument(
        "--batches", action="store_true", help="a batch job and groups beside the tasks"
    )
    parser.add_argument(
        "--cancels", action="store_true", help="only cancel what runs, and kill children meanwhile"
    )
    parser.add_argument("--flows", type=int, default=0, help="of twenty steps, beside the tasks")
    parser.add_argument("--engine", action="store_true", help="tasks-app work, without Celery")
    parser.add_argument(
        "--pause", type=float, nargs=2, default=(0.5, 2.5), help="seconds between two faults"
    )
    parser.add_argument("--children", type=int, default=2, help="of each worker")
    parser.add_argument("--only", default="", help="matrix: words in the names of kinds")
    parser.add_argument("--seeds", type=int, default=3, help="matrix: how many of each kind")
    parser.add_argument("--first-seed", type=int, help="matrix: replay")
    parser.add_argument("--jobs", type=int, default=1, help="matrix: runs side by side")
    parser.add_argument(
        "--minutes", type=float, help="matrix: begin nothing after this many minutes"
    )
    parser.add_argument(
        "--output", type=Path, help="write the report there; a run of all adds to it"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
