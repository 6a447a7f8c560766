"""The design with one rule left out. Every mutant must be caught, and for the right reason.

A mutant names the complaint that it must provoke and some words of the way there, in their
order; a checker that complains of something else has found another hole, not this one.
"""

from __future__ import annotations

from dev.verification.flow_configurations import MUTANTS as FLOWS
from dev.verification.mutants_of_deaths import DEATHS
from dev.verification.mutants_of_dispatch import DISPATCHES
from dev.verification.mutants_of_endings import ENDINGS
from dev.verification.mutants_of_gates import GATES
from dev.verification.mutants_of_runs import RUNS

ALL = (*RUNS, *DEATHS, *ENDINGS, *DISPATCHES, *GATES, *FLOWS)
