"""A task's row, and the few ways in which a statement may change it.

Everything here is a pure function from one row to the next. Who sends the statement, and when
it arrives, is in the other modules.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from dev.verification.rules import RunRules

State = Literal["PENDING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED", "SKIPPED", "EXPIRED"]
Outcome = Literal["ok", "ok, effects lost", "failed", "unknown"]
Victim = Literal["nobody", "child", "child at fetch", "worker", "connection"]

TERMINAL = frozenset({"SUCCEEDED", "FAILED", "CANCELLED", "SKIPPED", "EXPIRED"})
NO_ONE = 0
UNKNOWN_ATTEMPT = -1
MAX_ATTEMPTS = 2
MAX_CRASHES = 3
MANY = 2
"""Effects are counted 0, 1, many."""
RUNS_COUNTED = MAX_ATTEMPTS + MAX_CRASHES + 2


class Kind(NamedTuple):
    """What the model must know of a task's handler and options."""

    name: str
    in_session: bool = True
    """Its effects are writes through ctx.session; otherwise its outcome is collected."""
    may_fail: bool = False
    kills: Victim = "nobody"
    hangs: bool = False
    at_most_once: bool = False
    enabled: bool = True
    expires: bool = False
    not_due_yet: bool = False
    concurrent: bool = False
    """An async handler: several run in one child."""

    @property
    def runs_are_counted(self) -> bool:
        """Only where a promise limits the number of runs: counting multiplies the states."""
        return self.at_most_once or self.kills != "nobody"


class Fence(NamedTuple):
    """A run's proof of its claim; every write of the run carries it."""

    id: int
    attempt: int
    token: int


class Row(NamedTuple):
    """One task."""

    state: State = "PENDING"
    failures: int = 0
    crashes: int = 0
    attempt: int = 0
    """Counted only where a configuration looks at it; elsewhere the token says it all."""
    token: int = NO_ONE
    owner: int = NO_ONE
    lease_is_good: bool = True
    cancel_requested: bool = False
    expired: bool = False
    due: bool = True
    effects: int = 0
    """How many times writes through ctx.session were committed in this life."""
    runs: int = 0
    """How many times the handler was started in this life."""


def new_row(kind: Kind) -> Row:
    return Row(due=not kind.not_due_yet)


def fence_holds(rules: RunRules, row: Row, fence: Fence) -> bool:
    match rules.fence:
        case "token":
            return row.state == "RUNNING" and row.token == fence.token
        case "attempt":
            return row.state == "RUNNING" and row.attempt == fence.attempt
        case "state":
            return row.state == "RUNNING"
        case "id":
            return row.state in {"PENDING", "RUNNING"}


def ended(row: Row, state: State, effects: int | None = None) -> Row:
    """The row in a terminal pool. Counters that nobody reads there are forgotten."""
    kept = row.effects if effects is None else effects
    return Row(state=state, attempt=row.attempt, effects=kept)


def back_to_pending(rules: RunRules, row: Row) -> Row:
    """RUNNING -> PENDING, uncharged. A cancelled task does not come back (H3)."""
    if row.cancel_requested and rules.cancel_wins_over_coming_back:
        return ended(row, "CANCELLED")
    return row._replace(state="PENDING", token=NO_ONE, owner=NO_ONE, lease_is_good=True)


def charged(rules: RunRules, kind: Kind, row: Row) -> Row:
    """RUNNING -> PENDING with one failure more, or the error pool (P3)."""
    if row.cancel_requested and rules.cancel_wins_over_coming_back:
        return ended(row, "CANCELLED")
    if kind.at_most_once or row.failures + 1 >= MAX_ATTEMPTS:
        return ended(row, "FAILED")
    return back_to_pending(rules, row._replace(failures=row.failures + 1))


def crashed(rules: RunRules, row: Row) -> Row:
    """RUNNING -> PENDING with one crash more; charged to nobody, yet bounded (P3)."""
    if row.cancel_requested and rules.cancel_wins_over_coming_back:
        return ended(row, "CANCELLED")
    if row.crashes + 1 >= MAX_CRASHES and rules.crashes_are_bounded:
        return ended(row, "FAILED")
    return back_to_pending(rules, row._replace(crashes=min(MAX_CRASHES, row.crashes + 1)))


def lost_while_running(rules: RunRules, kind: Kind, row: Row) -> Row:
    """What a lapsed lease does; an at_most_once task may have run, so it never returns (P5)."""
    return ended(row, "FAILED") if kind.at_most_once else crashed(rules, row)


def settled(rules: RunRules, kind: Kind, row: Row, outcome: Outcome) -> Row:
    match outcome:
        case "ok":
            own_commit = kind.in_session and rules.effect_and_outcome_are_one_commit
            return ended(row, "SUCCEEDED", min(MANY, row.effects + own_commit))
        case "ok, effects lost":
            return ended(row, "SUCCEEDED")
        case "failed":
            return charged(rules, kind, row)
        case "unknown":
            return ended(row, "FAILED")


def started(kind: Kind, row: Row) -> Row:
    """The same row with one more run, where runs are counted."""
    if not kind.runs_are_counted or row.state in TERMINAL:
        return row
    return row._replace(runs=min(RUNS_COUNTED, row.runs + 1))
