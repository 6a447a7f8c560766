"""Endings: what a run came to is committed, collected for the next group, or given back.

The COMMIT of a short run may be sent and left alone while its thread goes on with the next one. It
is answered together with the first statement of that, or when its handler has returned.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import timedelta

from tasks_app.domain.decide import OUTCOME_UNKNOWN, failed
from tasks_app.domain.handler import HandlerSpec
from tasks_app.domain.logs import quiet_logger
from tasks_app.domain.states import Event
from tasks_app.domain.task import Cause, ClaimedTask, Settlement
from tasks_app.runtime.desk import Desk
from tasks_app.runtime.hooks import HOOKS, of_settlement
from tasks_app.runtime.running import Running
from tasks_app.runtime.settler import Settler
from tasks_app.runtime.transaction import Transaction
from tasks_app.runtime.verdicts import Verdicts

log = quiet_logger(__name__)

UNANSWERED_WAIT = timedelta(seconds=2)
"""How long a task waits whose COMMIT was not answered: the database is likely just coming back."""


@dataclass(frozen=True, slots=True)
class Ending:
    """A run whose handler has succeeded, and whose transaction is to commit."""

    run: Running
    spec: HandlerSpec
    transaction: Transaction
    settlement: Settlement


class Endings:
    """Of one child; its threads may end runs at once."""

    def __init__(self, desk: Desk, settler: Settler, verdicts: Verdicts) -> None:
        self._desk = desk
        self._settler = settler
        self._verdicts = verdicts
        self._sent: dict[int, Ending] = {}
        """By thread: what was sent, and not answered yet."""

    def commit(self, ending: Ending, *, later: bool) -> bool:
        """Effect, outcome and move in one commit. Nothing comes out.

        With ``later`` it may be that it is only sent: then True is returned, and the transaction
        stays as it is until :meth:`hear`.
        """
        fence = ending.run.task.fence
        return self._desk.begin_commit(fence) and self._carry_out(ending, later=later)

    def hear(self) -> None:
        """Wait for the answer to what this thread has sent, if it has. Nothing comes out."""
        ending = self._sent.pop(threading.get_ident(), None)
        if ending is None:
            return
        try:
            self._carry_out(ending, later=False)
        except BaseException as error:
            self.give_up(ending.run.task, ending.spec, error)
        finally:
            ending.transaction.abandon()

    def _carry_out(self, ending: Ending, *, later: bool) -> bool:
        task, transaction = ending.run.task, ending.transaction
        try:
            if later and transaction.send(ending.settlement):
                self._sent[threading.get_ident()] = ending
                ending.run.left = True
                return True
            state = transaction.conclude(ending.settlement)
        except BaseException as error:  # listeners of the user's session run in here
            transaction.abandon()
            self.keep(task, self._verdicts.on_commit(task, ending.spec, error))
            return False
        self._desk.drop(task.fence)
        if state is None:
            log.warning("task %s: the lease was lost, its effects roll back", task.task_id)
        elif HOOKS.wanted:
            HOOKS.tell([of_settlement(ending.settlement, task, state)])
        return False

    def keep(self, task: ClaimedTask, settlement: Settlement) -> None:
        """Collect an outcome for the next group, or carry it out now where it must stand alone."""
        if task.at_most_once:
            if not self._desk.begin_commit(task.fence):
                return
            if settlement.event is Event.RELEASE:
                settlement = failed(task, Cause(OUTCOME_UNKNOWN, "The database did not answer."))
            self._settler.settle_until_answered(settlement)
            self._desk.drop(task.fence)
        elif settlement.event is Event.RELEASE:
            self._desk.give_back(task, UNANSWERED_WAIT, suspect=True)
        else:
            self._desk.collect(settlement)

    def give_up(self, task: ClaimedTask, spec: HandlerSpec, error: BaseException) -> None:
        """See to a run in which something of ours broke."""
        kind = type(error).__name__  # its text may be the handler's, and hold anything
        log.error("task %s: its run ended in a way it never should: %s", task.task_id, kind)
        if self._desk.runs(task.fence):  # else it would be renewed, and RUNNING, for ever
            self.keep(task, self._verdicts.on_run(task, spec, error))
