"""``run --against PATH``: the same scenarios by turns here and in another checkout.

There its own Python runs its own tasks_app under the benchmarks of this checkout, in a folder of
links to all that it holds but its benchmarks.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from dev.benchmarks.environments import FOLDER, PROJECT
from dev.benchmarks.figures import Figures, read
from dev.benchmarks.run import ROUNDS, Choice

HERE, THERE = (FOLDER / "results" / f"{side}.jsonl" for side in ("here", "there"))
LINKS = FOLDER / "against"
LINE = "{:<18} {:<20} {:<22} {:>12} {:>12} {:>12}"


def against(other: Path, choice: Choice) -> int:
    """Measure by turns, and print medians and ratios; return 1 if anything failed."""
    python = other.resolve() / ".venv" / "bin" / "python"
    sides = [(HERE, sys.executable, PROJECT), (THERE, str(python), _links(other.resolve()))]
    HERE.parent.mkdir(parents=True, exist_ok=True)
    for output, *_ in sides:
        output.write_text("")
    failures = 0
    for number in range(choice.rounds or ROUNDS):
        for scenario, entries in choice.plan():
            chosen = ["--scenario", scenario.name, "--systems", ",".join(e.name for e in entries)]
            if choice.n:
                chosen += ["--n", str(choice.n)]
            for output, program, folder in sides[:: -1 if number % 2 else 1]:
                print(f"  {number + 1} {scenario.name} {output.stem}")
                command = [program, "-m", "dev.benchmarks", "run", "--rounds", "1", *chosen]
                command += ["--output", str(output)]
                failures += _run(command, folder) != 0
    print(LINE.format("scenario", "system", "figure", "here", "there", "here / there"))
    for row in compared(read([HERE]), read([THERE])):
        print(LINE.format(*row))
    print(f"{failures} failures; all runs are in {HERE} and {THERE}")
    return 1 if failures else 0


def _run(command: list[str], folder: Path) -> int:
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    try:
        return process.wait()
    finally:
        process.terminate()  # when we are ended: it stops its servers
        process.wait()


def compared(here: Figures, there: Figures) -> Iterator[tuple[str, ...]]:
    """Yield the medians of every figure that both have."""
    for (scenario, system), runs in here.runs.items():
        numbers = (name for name, value in runs[0].items() if isinstance(value, int | float))
        for name in numbers:
            ours = here.spread(scenario, system, name)
            theirs = there.spread(scenario, system, name)
            if name not in {"round", "n"} and ours and theirs:
                a, b = ours.median, theirs.median
                ratio = f"{a / b:.2f}" if b else ""
                yield scenario, system, name, f"{a:,.4g}", f"{b:,.4g}", ratio


def _links(other: Path) -> Path:
    """Make the folder of links; a private one stays, for instance that of its servers."""
    LINKS.mkdir(parents=True, exist_ok=True)
    for link in LINKS.iterdir():
        if link.is_symlink():
            link.unlink()
    for each in other.iterdir():
        if each.name != "dev" and not each.name.startswith("."):
            (LINKS / each.name).symlink_to(each)
    (LINKS / "dev").symlink_to(PROJECT / "dev")
    return LINKS
