"""What a mutant is: a rule, and the product without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


class StaleMutantError(Exception):
    """The text that a mutant wants to change is not, or not once, in the tree."""


@dataclass(frozen=True, slots=True)
class Change:
    """One text of one file, and what stands there instead."""

    file: str
    old: str
    new: str

    def applied(self, tree: Path) -> str:
        """Return the file's text with the change.

        Raises:
            StaleMutantError: the old text does not stand there exactly once.
        """
        text = (tree / self.file).read_text()
        if (times := text.count(self.old)) != 1:
            raise StaleMutantError(
                f"{self.file} holds {times} times what the mutant changes:\n{self.old}\n"
                "Write the mutant anew for what the code is today."
            )
        return text.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class Mutant:
    """The product without one of its rules."""

    name: str
    rule: str
    """The rule that it breaks, in a sentence."""
    changes: tuple[Change, ...]
    tests: tuple[str, ...]
    """``file::test`` of those that should notice; they pass without it."""

    @property
    def files(self) -> tuple[str, ...]:
        """What it changes."""
        return tuple(dict.fromkeys(change.file for change in self.changes))


def mutant(
    name: str, rule: str, file: str, old: str, new: str, *tests: str, also: Sequence[Change] = ()
) -> Mutant:
    """Return a mutant; most of them are one change."""
    return Mutant(name, rule, (Change(file, old, new), *also), tests)


def apply(mutant: Mutant, tree: Path) -> dict[str, str]:
    """Write the mutant into the tree; return the files as they were.

    Raises:
        StaleMutantError: it is not of this tree.
    """
    before = {file: (tree / file).read_text() for file in mutant.files}
    try:
        for change in mutant.changes:
            (tree / change.file).write_text(change.applied(tree))
    except StaleMutantError:
        restore(before, tree)
        raise
    return before


def restore(before: dict[str, str], tree: Path) -> None:
    """Write files as they were."""
    for file, text in before.items():
        (tree / file).write_text(text)
