"""Setups that must hold, and mutants of them that must fail."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dev.verification.dispatch_world import DispatchSetup
from dev.verification.flow_world import FlowSetup
from dev.verification.gate_world import GateSetup
from dev.verification.world import RunSetup


@dataclass(frozen=True, slots=True)
class Configuration:
    """A named setup that must hold."""

    name: str
    setup: RunSetup | DispatchSetup | GateSetup | FlowSetup
    quick: bool = False


@dataclass(frozen=True, slots=True)
class Mutant:
    """A setup that must fail."""

    name: str
    hole: str
    """The hole of the protocol, or the promise, that the missing rule protects."""
    setup: RunSetup | DispatchSetup | GateSetup | FlowSetup
    complaint: str
    way: tuple[str, ...]
    quick: bool = False


def without(setup: RunSetup, *rules: str) -> RunSetup:
    return replace(setup, rules=replace(setup.rules, **switched_off(rules)))


def dispatching_without(setup: DispatchSetup, *rules: str) -> DispatchSetup:
    """The same, for the other model."""
    return replace(setup, rules=replace(setup.rules, **switched_off(rules)))


def guarding_without(setup: GateSetup, *rules: str) -> GateSetup:
    """The same, for the model of gates."""
    return replace(setup, rules=replace(setup.rules, **switched_off(rules)))


def switched_off(rules: tuple[str, ...]) -> dict[str, Any]:
    return dict.fromkeys(rules, False)
