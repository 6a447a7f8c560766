"""The model checker: it finds what is there, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dev.verification import configurations, mutants
from dev.verification.explorer import Step, explore, fault, progress
from dev.verification.report import is_caught, visit
from dev.verification.rules import DispatchRules, FlowRules, GateRules, RunRules
from dev.verification.trial import Mutant


class Staircase:
    """A toy: climb by one or two; some steps are rotten, some have no way up."""

    def __init__(self, *, top: int, rotten: int | None = None, trap: int | None = None) -> None:
        self.top, self.rotten, self.trap = top, rotten, trap

    def initial(self) -> int:
        return 0

    def steps(self, world: int) -> Iterator[Step[int]]:
        if world == self.trap:
            return
        for height in (1, 2):
            if world + height <= self.top:
                yield progress(f"climb {height}", world + height)
        if world == 1:
            yield fault("fall", 0)

    def broken_promise(self, before: int, step: Step[int]) -> str | None:
        return "fell through" if step.after == self.rotten else None

    def finished(self, world: int) -> bool:
        return world == self.top

    def picture(self, world: int) -> str:
        return f"on step {world}"


def test_a_sound_staircase_holds() -> None:
    verdict = explore(Staircase(top=5))
    assert (verdict.complaint, verdict.trace) == (None, ())
    assert (verdict.states, verdict.edges) == (6, 10)


def test_the_trace_to_a_broken_promise_is_a_shortest_one() -> None:
    verdict = explore(Staircase(top=9, rotten=6))
    assert verdict.complaint == "fell through"
    assert [moment.what for moment in verdict.trace] == ["climb 2"] * 3
    assert verdict.trace[-1].picture == "on step 6"


def test_a_trap_is_reported_with_the_way_into_it() -> None:
    verdict = explore(Staircase(top=6, trap=3))
    assert verdict.complaint is not None
    assert "stuck from step 2 on (1 states" in verdict.complaint
    assert [moment.picture for moment in verdict.trace] == ["on step 1", "on step 3"]


def test_a_way_out_that_needs_a_fault_is_no_way_out() -> None:
    class OnlyByLuck(Staircase):
        def steps(self, world: int) -> Iterator[Step[int]]:
            yield (fault if world == 2 else progress)("climb", min(world + 1, self.top))

    verdict = explore(OnlyByLuck(top=4))
    assert verdict.complaint is not None
    assert "stuck from step 0 on (3 states" in verdict.complaint
    assert verdict.trace[-1].picture == "on step 2"


def test_too_many_states_prove_nothing() -> None:
    verdict = explore(Staircase(top=100), limit=10)
    assert verdict.complaint is not None
    assert "nothing is proved" in verdict.complaint


@pytest.mark.test_all
@pytest.mark.parametrize(
    "name", ["two reapers and a late claim of the dead", "two scanners, one dies; a late commit"]
)
def test_a_real_configuration_holds(name: str) -> None:
    (configuration,) = (c for c in configurations.ALL if c.name == name)
    assert visit(configuration.setup).complaint is None


@pytest.mark.test_all  # make check tries them, too
@pytest.mark.parametrize("mutant", [m for m in mutants.ALL if m.quick], ids=lambda m: m.name)
def test_a_mutant_is_caught_for_the_right_reason(mutant: Mutant) -> None:
    verdict = visit(mutant.setup)
    assert is_caught(mutant, verdict), verdict


def test_every_rule_has_a_mutant() -> None:
    """A rule whose absence breaks nothing has no business in the design."""
    on_trial = set()
    for mutant in mutants.ALL:
        rules = mutant.setup.rules
        sound = type(rules)()
        on_trial |= {
            name for name in rules.__slots__ if getattr(rules, name) != getattr(sound, name)
        }
    every = (RunRules, DispatchRules, GateRules, FlowRules)
    assert on_trial == {name for rules in every for name in rules.__slots__}


def test_names_are_unique() -> None:
    names = [c.name for c in configurations.ALL] + [m.name for m in mutants.ALL]
    assert len(names) == len(set(names))


def test_the_readme_tells_of_every_mutant() -> None:
    readme = Path(mutants.__file__).with_name("README.md").read_text()
    assert [m.name for m in mutants.ALL if f"| {m.hole} | {m.name} |" not in readme] == []
