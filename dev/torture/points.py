"""The places at which a process can be hurt: what is called there, and whether before or after.

The product knows nothing of them: a point is a name in the module that calls it, and is replaced
there when failpoints are set up. So they cost nothing where they are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

AFTER = {
    *("create.inserted", "create.committed", "hint.sent", "dispatch.found", "dispatch.published"),
    *("claim.committed", "handler.returned", "settle.committed"),
    *("end.sent", "effect.committed", "renew.committed", "beat.committed", "release.committed"),
    *("message.ended", "reap.committed", "rescue.committed", "sweep.done", "lead.taken"),
    "late.committed",
    *("fire.entered", "fire.committed", "chunk.told", "chunk.committed", "step.entered"),
}
"""Reached when what is called has returned; the others before it is called."""

PLACES: dict[str, str] = {
    "create.inserted": "tasks_app.pool.tasks.create:create_one",
    "create.committed": "tasks_app.runtime.hints:Hints._committed",
    "hint.before": "tasks_app.runtime.hint_sender:HintChannel.start",
    "hint.sent": "tasks_app.runtime.hint_sender:HintChannel._was_sent",
    "dispatch.found": "tasks_app.runtime.leader.dispatcher:Dispatcher._collect",
    "dispatch.before": "tasks_app.runtime.leader.dispatcher:Dispatcher._publish",
    "dispatch.published": "tasks_app.runtime.leader.dispatcher:Dispatcher._publish",
    "lead.taken": "tasks_app.runtime.leader.leadership:Leadership._acquire",
    "message.received": "tasks_app.runtime.execution.executor:Executor.execute",
    "claim.before": "tasks_app.runtime.execution.claims:Fetcher._by_id",
    "claim.committed": "tasks_app.runtime.execution.claims:Fetcher._by_id",
    "handler.before": "tasks_app.runtime.execution.invocation:Invocation.make",
    "handler.returned": "tasks_app.runtime.execution.invocation:Invocation.make",
    "settle.before": "tasks_app.runtime.execution.settler:settle_group",
    "settle.committed": "tasks_app.runtime.execution.settler:settle_group",
    "effect.before": "tasks_app.runtime.db.transaction:RunTransaction._commit",
    "end.sent": "tasks_app.runtime.handler_db.ends:EndsRuns._send_all",
    "effect.committed": "tasks_app.runtime.db.transaction:RunTransaction.conclude",
    "late.before": "tasks_app.runtime.execution.settler:Settler._commit_each",
    "late.committed": "tasks_app.runtime.execution.settler:Settler._commit_each",
    "renew.before": "tasks_app.runtime.worker.housekeeper:renew",
    "renew.committed": "tasks_app.runtime.worker.housekeeper:LeaseRenewer.renew",
    "beat.committed": "tasks_app.runtime.worker.housekeeper:heartbeats.write_heartbeat",
    "release.before": "tasks_app.runtime.worker.housekeeper:release",
    "release.committed": "tasks_app.runtime.worker.housekeeper:ClaimReturner.release",
    "message.ended": "tasks_app.runtime.execution.in_flight:InFlight.close_message",
    "reap.before": "tasks_app.runtime.worker.reaper:claims_of",
    "reap.committed": "tasks_app.runtime.worker.reaper:Reaper.reap_dead",
    "rescue.before": "tasks_app.runtime.leader.rescuer:rescue_expired",
    "rescue.committed": "tasks_app.runtime.leader.rescuer:Rescuer.run_once",
    "sweep.before": "tasks_app.runtime.scan:sweep",
    "sweep.done": "tasks_app.runtime.scan:sweep",
    "fire.before": "tasks_app.runtime.schedules.scheduler:scheduling.lock_due",
    "fire.entered": "tasks_app.runtime.schedules.scheduler:scheduling.record_fires",
    "fire.committed": "tasks_app.runtime.schedules.scheduler:Scheduler._pass",
    "chunk.before": "tasks_app.batch.execution.partition_run:PartitionRun._advance",
    "chunk.told": "tasks_app.batch.execution.partition_run:PartitionRun._advance",
    "chunk.committed": "tasks_app.runtime.db.transaction:RunTransaction.keep",
    "step.entered": "tasks_app.batch.progress:StepTasks.create",
    "maintain.before": "tasks_app.runtime.leader.maintainer:add_partition",
}


@dataclass(frozen=True, slots=True)
class Place:
    """What is called at a point, as its caller knows it."""

    owner: Any
    attribute: str

    @property
    def call(self) -> Any:
        return getattr(self.owner, self.attribute)


def place(point: str) -> Place:
    """Return where a point is.

    Raises:
        KeyError: there is no such point.
        AttributeError: the product was changed, and the point is no more.
    """
    module, _, path = PLACES[point].partition(":")
    owner: Any = import_module(module)
    *way, attribute = path.split(".")
    for step in way:
        owner = getattr(owner, step)
    found = Place(owner, attribute)
    if not callable(found.call):
        raise AttributeError(f"{PLACES[point]} is not a call")
    return found
