"""`python -m dev.torture.mutants`: each mutant of the product must be caught by the tests it names.

The same tests must pass on the product as it is, each time.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

from dev.torture.mutants.all import ALL
from dev.torture.mutants.change import Mutant, StaleMutantError
from dev.torture.mutants.trial import Trial, copy_of_the_tree, run_tests, try_mutant


def arguments() -> argparse.Namespace:
    """What was asked for on the command line."""
    parser = argparse.ArgumentParser(prog="python -m dev.torture.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="try what has this in its name")
    parser.add_argument("--list", action="store_true", help="name all, try none")
    parser.add_argument("--clean", type=int, default=10, help="runs of the product as it is (10)")
    parser.add_argument("--jobs", type=int, default=2, help="trials at a time (2)")
    return parser.parse_args()


def wanted(names: list[str]) -> list[Mutant]:
    """Return the mutants that the command line asks for."""
    return [m for m in ALL if not names or any(part in m.name for part in names)]


class Copies:
    """One copy of the tree for each trial that goes on."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._free: SimpleQueue[Path] = SimpleQueue()
        for folder in folders:
            self._free.put(folder)
        self._print = threading.Lock()

    def clean(self, number: int, mutants: list[Mutant]) -> bool:
        """Run all tests of all mutants on the product as it is."""
        tests = dict.fromkeys(test for mutant in mutants for test in mutant.tests)
        files = dict.fromkeys(file for mutant in mutants for file in mutant.files)
        tree = self._free.get()
        try:
            trial = run_tests(tests, tree, list(files))
        finally:
            self._free.put(tree)
        what = "clean " if trial.clean else "ALARM "
        self._say(f"{what} {trial.seconds:5.1f} s  run {number}: {trial.passed} tests pass", trial)
        return trial.clean

    def try_it(self, mutant: Mutant) -> bool:
        """Try one mutant, and say what came of it."""
        tree = self._free.get()
        try:
            trial = try_mutant(mutant, tree)
        except StaleMutantError as error:
            trial = Trial((), 0, 0.0, str(error))
        finally:
            self._free.put(tree)
        what = "caught" if trial.caught else "MISSED"
        self._say(f"{what} {trial.seconds:5.1f} s  {mutant.name}: {mutant.rule}", trial)
        return trial.caught

    def _say(self, line: str, trial: Trial) -> None:
        with self._print:
            print(line)
            for test, kind in trial.failed:
                print(f"                   {kind} in {test}")
            if trial.trouble:
                print(f"                   {trial.trouble}")
            sys.stdout.flush()


def in_turn(answers: Iterator[bool]) -> tuple[int, int]:
    """Return how many were as they should be, of how many."""
    results = list(answers)
    return sum(results), len(results)


def main() -> int:
    """0 if all mutants are caught, and no clean run gave an alarm."""
    asked = arguments()
    mutants = wanted(asked.names)
    if asked.list:
        for mutant in mutants:
            print(f"{mutant.name}: {mutant.rule}")
        return 0
    began = time.monotonic()
    with ExitStack() as stack:
        folders = [stack.enter_context(copy_of_the_tree()) for _ in range(asked.jobs)]
        copies = Copies(folders)
        with ThreadPoolExecutor(asked.jobs) as pool:
            caught, tried = in_turn(pool.map(copies.try_it, mutants))
            runs = range(1, asked.clean + 1)
            clean, ran = in_turn(pool.map(lambda number: copies.clean(number, mutants), runs))
    print(
        f"\n{caught} of {tried} mutants of the product are caught, {clean} of {ran} runs without "
        f"a mutant are clean: {time.monotonic() - began:.0f} s"
    )
    return 0 if (caught, clean) == (tried, ran) and mutants else 1


if __name__ == "__main__":
    sys.exit(main())
