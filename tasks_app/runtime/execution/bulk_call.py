"""One call of a bulk handler for many tasks: it ends them together, or leaves them to be run alone.

Whatever cannot be told apart here (a call that raised, a COMMIT that was refused, a lost fence) is
rolled back, and each task runs by itself: then its own run says what is wrong with it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tasks_app.domain.errors import TaskCancelledError
from tasks_app.domain.handlers.outcomes import Fail, Outcome
from tasks_app.domain.handlers.settlement import is_outage
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.tasks.error_text import quiet_logger
from tasks_app.domain.tasks.run import Settlement
from tasks_app.runtime.db.errors import spares_handlers
from tasks_app.runtime.db.transaction import Transaction
from tasks_app.runtime.execution.completion import Completion, EndOfRun
from tasks_app.runtime.execution.in_flight import InFlight
from tasks_app.runtime.execution.invocation import Invocation
from tasks_app.runtime.execution.settler import report_settled
from tasks_app.runtime.handler_db.statements import ENDED
from tasks_app.runtime.handlers.bulk import BulkContext, Item, check_returned
from tasks_app.runtime.handlers.checkpoint import ActiveRun
from tasks_app.runtime.handlers.context import AsyncTaskContext, TaskContext

log = quiet_logger(__name__)


class _Called(NamedTuple):
    end: EndOfRun
    item: Item[Any]


class BulkCaller:
    """Calls the bulk handlers of one child; several threads may at once."""

    def __init__(
        self,
        inflight: InFlight,
        invocation: Invocation,
        completion: Completion,
        *,
        log_prefix: bool,
    ) -> None:
        self._inflight = inflight
        self._invocation = invocation
        self._completion = completion
        self._log_prefix = log_prefix

    def carry_out(
        self, runs: Sequence[ActiveRun], spec: HandlerSpec, limit: float | None
    ) -> list[ActiveRun]:
        """Call the handler once for started runs of one name; return those to be run alone."""
        lane = self._invocation.lane(spec)
        transaction = lane.transaction(runs[0].task.fence)
        called, contexts, left = list[_Called](), list[TaskContext[Any]](), list[ActiveRun]()
        deadline = None if limit is None else time.monotonic() + limit
        kind = AsyncTaskContext if spec.is_async else TaskContext
        try:
            for run in runs:
                context: TaskContext[Any] = kind(run, transaction, deadline, self._log_prefix)
                contexts.append(context)
                try:
                    _, payload = self._invocation.prepare(run, spec, context)
                except Exception:  # a payload that does not fit, a key that is missing
                    left.append(run)
                else:
                    end = EndOfRun(run, spec, limit)
                    end.transaction = transaction
                    called.append(_Called(end, Item(context, payload)))
            if called:
                left += self._call(called, spec, transaction, limit)
        finally:
            for context in contexts:
                context.close()
            transaction.abandon()
        return left

    def _call(
        self,
        called: Sequence[_Called],
        spec: HandlerSpec,
        transaction: Transaction,
        limit: float | None,
    ) -> list[ActiveRun]:
        (first, *others), items = [end.run for end, _ in called], [item for _, item in called]
        function = replace(spec, function=spec.bulk or spec.function)
        first.others = others  # a cancel of any of them ends the call
        arguments = (BulkContext(items[0].context), items)
        try:
            made = self._invocation.call(first, function, items[0].context, arguments, limit)
            check_returned(made)
        except BaseException as error:
            return self._after_error(called, transaction, error)
        finally:
            first.others = ()
        succeeded, otherwise = list[tuple[EndOfRun, Settlement]](), list[tuple[EndOfRun, Any]]()
        for end, item in called:
            item.context.close()  # what the handler left running is too late
            try:
                if item.outcome is not None:
                    raise item.outcome
                settlement = self._invocation.success(end.run, spec, item.value)
                succeeded.append((end, settlement))
            except Exception as other:  # or a result that cannot be stored
                otherwise.append((end, other))
        if not succeeded or not transaction.active:
            transaction.abandon()
            for _, settlement in succeeded:
                self._inflight.collect(settlement)
        elif left := self._commit(succeeded, transaction):
            return [*left, *(end.run for end, _ in otherwise)]
        return self._end_each(otherwise)

    def _commit(
        self, succeeded: Sequence[tuple[EndOfRun, Settlement]], transaction: Transaction
    ) -> list[ActiveRun]:
        """Commit what the call wrote and all that succeeded; return those to be run alone."""
        settlements = [settlement for _, settlement in succeeded]
        try:
            ours = [self._inflight.begin_commit(s.fence) for s in settlements]
            state = transaction.conclude(*settlements) if all(ours) else None
        except BaseException as error:
            transaction.abandon()
            if isinstance(error, Outcome):  # the handler ended its transaction
                return self._end_each([(end, error) for end, _ in succeeded])
            if spares_handlers(error):  # the database did not answer: it may have committed
                for end, settlement in succeeded:
                    self._completion.end_without_commit(end, settlement, error)
                return []
            log.warning("%s", _again(len(settlements), succeeded[0][0].run, error))
            state = None
        if state is None:
            transaction.abandon()
            return [end.run for end, s in succeeded if self._inflight.run_again(s.fence)]
        self._inflight.drop(*[s.fence for s in settlements])
        report_settled(settlements, dict.fromkeys((s.fence.task_id for s in settlements), state))
        return []

    def _after_error(
        self, called: Sequence[_Called], transaction: Transaction, error: BaseException
    ) -> list[ActiveRun]:
        """End all if the error names the outcome of all; else those that were cancelled."""
        if transaction.ended:  # what was written by then may stand: nobody is to write it again
            error = Fail(ENDED)
        transaction.abandon()
        spec = called[0].end.spec
        if isinstance(error, Outcome) or is_outage(spec, error):
            return self._end_each([(end, error) for end, _ in called])
        ended, left = list[tuple[EndOfRun, BaseException]](), list[ActiveRun]()
        for end, _ in called:
            if spec.cancellable and end.run.cancelled:
                ended.append((end, TaskCancelledError()))
            else:
                left.append(end.run)
        if left:
            log.warning("%s", _again(len(called), left[0], error))
        return [*left, *self._end_each(ended)]

    def _end_each(self, ends: Sequence[tuple[EndOfRun, BaseException]]) -> list[ActiveRun]:
        """End each by its error; return those that are to run again, as after a conflict."""
        for end, error in ends:
            self._completion.end_without_return(end, error)
        return [end.run for end, _ in ends if end.runs_again]


def _again(number: int, run: ActiveRun, error: BaseException) -> str:
    kind = type(error).__name__
    return f"a call of {run.task.name} for {number} tasks ended with {kind}: each runs again alone"
