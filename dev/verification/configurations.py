"""The real configurations: which tasks, which workers, which faults. Every one must hold.

Faults are rationed, mostly one or two of a kind: a promise that two coincidences break shows
itself with two, and the number of states stays within a few minutes of one core.
"""

from __future__ import annotations

from dev.verification.dispatch_configurations import DISPATCHES
from dev.verification.flow_configurations import FLOWS
from dev.verification.gate_configurations import GATES
from dev.verification.run_configurations import RUNS

ALL = (*RUNS, *DISPATCHES, *GATES, *FLOWS)
