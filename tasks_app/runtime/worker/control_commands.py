"""Control commands: what operators ask of a worker happens in the database, or not at all."""

from __future__ import annotations

from collections.abc import Callable

from tasks_app.domain.safe_logging import quiet_logger
from tasks_app.pool.dispatch import leader_lease
from tasks_app.pool.tasks import browse
from tasks_app.pool.tasks.cancel import Cancelled
from tasks_app.runtime.api.queues import pause_queue, resume_queue
from tasks_app.runtime.api.tasks import cancel_task
from tasks_app.runtime.db.database import Database
from tasks_app.runtime.hooks import HOOKS, NoticeKind, of_outline
from tasks_app.runtime.worker.control_inbox import ControlCommand, Do, Mailbox

log = quiet_logger(__name__)

BY = "remote control"


class ControlCommands:
    """A duty of the housekeeper. Every worker gets each command, so it may be done already."""

    def __init__(
        self, database: Database, mailbox: Mailbox, renew_soon: Callable[[], None]
    ) -> None:
        self._database = database
        self._mailbox = mailbox
        self._renew_soon = renew_soon

    def carry_out(self) -> None:
        """Do what waits in the mailbox. A renewal then tells running tasks that were cancelled.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: one could not be done now; it waits for the next look.
        """
        if not self._mailbox.has_news():
            return
        self._renew_soon()
        for taken, command in self._mailbox.take():
            try:
                self._do(command)
            except BaseException:
                self._mailbox.put_back(taken)
                raise
            self._mailbox.done(taken)

    def _do(self, command: ControlCommand) -> None:
        match command.do:
            case Do.CANCEL:
                for task_id in command.ids:
                    self._cancel(task_id)
            case Do.PAUSE:
                with self._database.begin() as connection:
                    changed = pause_queue(connection, command.queue, command.reason, by=BY)
                if changed:
                    log.warning("queue %s is paused", command.queue)
            case Do.RESUME:
                with self._database.begin() as connection:
                    resumed = resume_queue(connection, command.queue, by=BY)
                if resumed:
                    log.warning("resumed: queue %s", ", ".join(resumed))
            case Do.COUNT_STRANGERS:
                with self._database.begin() as connection:
                    leader_lease.count_strangers(connection, leader_lease.SCAN, sum(command.ids))

    def _cancel(self, task_id: int) -> None:
        with self._database.begin() as connection:
            answer = cancel_task(connection, task_id, by=BY)
            over = answer is Cancelled.CANCELLED
            outlines = browse.outlines(connection, [task_id]) if over else []
        log.info("cancel task %s, as asked from outside: %s", task_id, answer)
        HOOKS.tell(of_outline(outline, NoticeKind.CANCELLED) for outline in outlines)
