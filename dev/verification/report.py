"""Run configurations and mutants, and print the results."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import NamedTuple

from dev.verification.dispatch_model import DispatchModel
from dev.verification.dispatch_world import DispatchSetup
from dev.verification.explorer import Moment, Verdict, explore
from dev.verification.flow_model import FlowModel
from dev.verification.flow_world import FlowSetup
from dev.verification.gate_model import GateModel
from dev.verification.gate_world import GateSetup
from dev.verification.run_model import RunModel
from dev.verification.trial import Configuration, Mutant
from dev.verification.world import RunSetup

WIDTH = 100


class Total(NamedTuple):
    """The sums of a whole run."""

    runs: int = 0
    unexpected: int = 0
    states: int = 0
    edges: int = 0
    seconds: float = 0.0

    def plus(self, verdict: Verdict, *, as_expected: bool) -> Total:
        return Total(
            self.runs + 1,
            self.unexpected + (not as_expected),
            self.states + verdict.states,
            self.edges + verdict.edges,
            self.seconds + verdict.seconds,
        )


def visit(setup: RunSetup | DispatchSetup | GateSetup | FlowSetup) -> Verdict:
    if isinstance(setup, RunSetup):
        return explore(RunModel(setup))
    if isinstance(setup, GateSetup):
        return explore(GateModel(setup))
    if isinstance(setup, FlowSetup):
        return explore(FlowModel(setup))
    return explore(DispatchModel(setup))


def is_caught(mutant: Mutant, verdict: Verdict) -> bool:
    """Whether the checker finds the expected broken promise by the expected steps."""
    if verdict.complaint is None or mutant.complaint not in verdict.complaint:
        return False
    moments = iter(moment.what for moment in verdict.trace)
    return all(any(words in what for what in moments) for words in mutant.way)


def run_configurations(configurations: Iterable[Configuration]) -> Total:
    total = Total()
    for configuration in configurations:
        verdict = visit(configuration.setup)
        holds = verdict.complaint is None
        total = total.plus(verdict, as_expected=holds)
        line = f"{verdict.states:9,} states {verdict.edges:10,} edges {verdict.seconds:6.1f} s"
        print(f"{'holds ' if holds else 'BROKEN'} {line}  {configuration.name}", flush=True)
        if not holds:
            print_trace(verdict)
    return total


def run_mutants(mutants: Iterable[Mutant]) -> Total:
    """Every mutant must be caught, for the right reason."""
    total = Total()
    for mutant in mutants:
        verdict = visit(mutant.setup)
        caught = is_caught(mutant, verdict)
        total = total.plus(verdict, as_expected=caught)
        word = "caught" if caught else "MISSED"
        print(f"\n{word} {mutant.name} ({mutant.hole}), after {verdict.states:,} states")
        print_trace(verdict)
        if not caught:
            print(f"       wanted: {mutant.complaint} by way of {mutant.way}", flush=True)
    return total


def print_trace(verdict: Verdict) -> None:
    """A counter-example, step by step; `!` marks a fault, `>` the rows after the step."""
    print(f"       {verdict.complaint}", flush=True)
    before = ""
    for number, moment in enumerate(verdict.trace, start=1):
        print(f"    {number:3}. {'!' if moment.is_fault else ' '} {moment.what}")
        if moment.picture != before:
            print_picture(moment)
        before = moment.picture
    if not verdict.trace and verdict.complaint is not None:
        print("           (already at the start)")


def print_picture(moment: Moment) -> None:
    """The rows after a step that changed them."""
    indent = " " * 11
    text = textwrap.fill(
        f"> {moment.picture}", WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  "
    )
    print(text, flush=True)
