"""The matrix: each kind of fault alone, some seeds each, short runs, one table."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dev.torture.kinds import Kind, kinds_on
from dev.torture.run import Plan, Report, run
from dev.torture.surroundings import Surroundings
from dev.torture.world import World

REFUSED = "stale writes refused by the fence"
COLUMNS = (
    *("fault", "seeds", "injections", "tasks", "broken promises", "refused stale writes"),
    *("slowest recovery s", "verdict"),
)
TASKS, SPREAD_S, QUIET_S, LEASE_S = 600, 7.0, 25.0, 2.0


@dataclass(frozen=True, slots=True)
class Line:
    """What came of one kind and one seed."""

    kind: Kind
    seed: int
    report: Report
    seconds: float

    @property
    def injections(self) -> int:
        """How often it happened."""
        world = self.report.world
        lines = (world.database, world.servers.behind)
        lost = sum(line.lost for line in lines if line)
        return lost if self.kind.loses else sum(world.counts.values())

    @property
    def passed(self) -> bool:
        """Whether it happened at all, and nothing came of it."""
        return self.report.passed and self.injections > 0


def try_kinds(
    kinds: list[Kind],
    seeds: Sequence[int],
    jobs: int,
    surroundings: Surroundings,
    *,
    batches: bool = False,
) -> Iterator[Line]:
    """Try each kind with each seed, some runs side by side; all kinds with the first seed first.

    ``batches``: a batch job and groups run beside the tasks.
    """
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(
            lambda kind, seed: _try(kind, seed, surroundings, batches=batches),
            kinds * len(seeds),
            [seed for seed in seeds for _ in kinds],
        )


def chosen(words: str, surroundings: Surroundings, *, batches: bool = False) -> list[Kind]:
    wanted = [word.strip() for word in words.split(",") if word.strip()]
    kinds = kinds_on(surroundings, batches=batches)
    return [kind for kind in kinds if not wanted or any(word in kind.name for word in wanted)]


def _try(kind: Kind, seed: int, surroundings: Surroundings, *, batches: bool) -> Line:
    plan = Plan(
        seed,
        TASKS,
        LEASE_S,
        SPREAD_S,
        QUIET_S,
        kind.failpoints,
        workers=1,
        beats=2,
        pause_s=(0.4, 1.2),
        cancels=kind.cancels,
        jobs=batches,
        surroundings=surroundings,
    )

    def draw(world: World) -> str:
        if kind.hurt is not None:
            world.hurt(kind.name, kind.hurt)
        return kind.name

    folder = Path(tempfile.mkdtemp(prefix="tasks_app-torture-"))
    started = time.monotonic()
    report = run(plan, folder, draw, tell=lambda _: None)
    return Line(kind, seed, report, time.monotonic() - started)


def page(lines: Sequence[Line], surroundings: Surroundings) -> str:
    passed = sum(line.passed for line in lines)
    seeds = sorted({line.seed for line in lines})
    return f"""# Torture: each kind of fault alone

Written by `make torture ARGS="--output FILE"`. Each run has
{surroundings.words}, a Celery worker with two children and two beats of its own,
all behind a TCP proxy, and {TASKS} tasks that write one row each, in {SPREAD_S:g} s; the lease is
{LEASE_S:g} s. Meanwhile three schedules fire once a second. Effects have no unique constraint: a
second one would be seen. A run passes if the fault happened, every task that was committed and not
cancelled succeeded with exactly one effect, of the attempt that settled, and each instant of a
schedule made exactly one task.

{passed} of {len(lines)} runs passed. One kind again:
`python -m dev.torture matrix{surroundings.options} --only "F24" --seeds 1 --first-seed {seeds[0]}`.
The seed decides what is drawn, not how processes interleave.

{table(lines)}
"""


def table(lines: Sequence[Line]) -> str:
    """Write a table in Markdown: one line per kind, its seeds together."""
    rows = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for kind in dict.fromkeys(line.kind for line in lines):
        mine = [line for line in lines if line.kind is kind]
        broken = {c.sentence for line in mine for c in line.report.checks if not c.holds}
        refused = sum(int(str(dict(line.report.remarks)[REFUSED])) for line in mine)
        rows.append(
            f"| {kind.name} | {', '.join(str(line.seed) for line in mine)} "
            f"| {sum(line.injections for line in mine)} | {TASKS * len(mine)} "
            f"| {'; '.join(sorted(broken)) or 0} | {refused} "
            f"| {max(line.report.recovery_s for line in mine):.1f} "
            f"| {'passed' if all(line.passed for line in mine) else 'FAILED'} |"
        )
    return "\n".join(rows)


def seeds(number: int, first: int | None) -> list[int]:
    """Return this many seeds: from ``first`` on, or drawn."""
    start = random.SystemRandom().randrange(10**6) if first is None else first
    return list(range(start, start + number))
