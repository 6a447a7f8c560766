"""Does a live worker know what is due, and how long does that wait?"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection

from tasks_app.domain.config.settings import Settings
from tasks_app.domain.explain.words import NAME_ITS_MODULE, rough
from tasks_app.domain.finding import Finding, fail, ok, warn
from tasks_app.domain.flow_control.circuit_breaker import BreakerState
from tasks_app.domain.spelling import similar
from tasks_app.pool.flow_control import circuit_breakers
from tasks_app.pool.fragments.conditions import standing_still
from tasks_app.pool.operations import diagnostics
from tasks_app.pool.operations.diagnostics import DueWork
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.tables import EVERY_QUEUE
from tasks_app.runtime.api.tasks import PATIENCE
from tasks_app.runtime.handlers.registry import HANDLERS

MOST_NAMED = 3


def due_tasks(connection: Connection, settings: Settings) -> list[Finding]:
    """Ask the four below, of one reading: of 100,000 due tasks it takes a tenth of a second."""
    due = diagnostics.due_work(connection)
    return [
        *reach(connection, settings, due),
        *elsewhere(connection, due),
        *shared(connection, settings, due),
        *waiting(connection, settings, due),
    ]


def reach(connection: Connection, settings: Settings, due: list[DueWork]) -> list[Finding]:
    """Does a live worker of its queue know every due task?"""
    known = heartbeats.known_names(connection, settings.lease)
    if not due and not known:
        return []
    by = heartbeats.run_by(connection, settings.lease)
    findings = [
        fail(
            "queues",
            f"{sum(d.number for d in due if d.queue == queue)} due in {queue}, served by no worker",
            by.start_worker(queue),
        )
        for queue in sorted({d.queue for d in due} - known.keys())
    ]
    everybody = set().union(*known.values())
    for each in sorted(due, key=lambda each: (each.name, each.queue)):
        if each.queue not in known or each.name in known[each.queue]:
            continue
        where = sorted(queue for queue, names in known.items() if each.name in names)
        if where:
            fact = (
                f"{each.number} due for {each.name} in {each.queue}, whose workers do not know it"
            )
            advice = f"Workers of {', '.join(where)} do: one of them must serve {each.queue}, too."
        else:
            fact = f"{each.number} due for {each.name}, known to no worker"
            fact += similar(each.name, everybody)
            advice = f"{NAME_ITS_MODULE}."
        findings.append(fail("handlers", fact, advice))
    return findings or [ok("queues", "every task that is due has a worker that knows it")]


def elsewhere(connection: Connection, due: list[DueWork]) -> list[Finding]:
    """Do tasks lie in another queue than that of their handler, past its pause?

    A producer may have said so, or it did not know the handler, as SQL does not.
    """
    still = standing_still(connection)
    findings = []
    for each in due:
        spec = HANDLERS.get(each.name)
        if spec is None or spec.queue == each.queue:
            continue
        fact = f"{each.number} due for {each.name} in {each.queue}, its handler's is {spec.queue}"
        advice = (
            "Unless that is meant, give queue= where they are created by name, and: tasks-app move "
            f"--name {each.name} --queue {each.queue} --to {spec.queue}"
        )
        passes = spec.queue in still and each.queue not in still and EVERY_QUEUE not in still
        fact += ", which stands still" if passes else ""
        findings.append((warn if passes else ok)("queues", fact, advice))
    return findings


def shared(connection: Connection, settings: Settings, due: list[DueWork]) -> list[Finding]:
    """Do workers that know different handlers serve the same queue?

    A worker reports its handlers, not the queue of each: only due tasks show that some wait for
    another worker. Without any it is no warning.
    """
    known: dict[str, list[set[str]]] = {}
    for worker in heartbeats.live(connection, settings.lease):
        for queue in worker.queues:
            known.setdefault(queue, []).append(set(worker.handlers))
    findings = []
    for queue, sets in sorted(known.items()):
        partly = sets[0].union(*sets) - sets[0].intersection(*sets)
        if not partly:
            continue
        waits = sorted({d.name for d in due if d.queue == queue} & partly)
        named = ", ".join((waits or sorted(partly))[:MOST_NAMED])
        fact = f"{queue} is served by workers with different handlers; not all know {named}"
        if waits:
            advice = "A task may make a detour. Give each service a queue of its own."
            findings.append(warn("queues", fact, advice))
        else:
            findings.append(ok("queues", fact))
    return findings


def waiting(connection: Connection, settings: Settings, found: list[DueWork]) -> list[Finding]:
    """How long do due tasks wait that could run?"""
    runs = what_runs(connection, settings)
    due = [each for each in found if runs(each.queue, each.name)]
    if not due:
        where = " that could run" if found else ""
        return [ok("due tasks", f"none waits{where}")]
    number, oldest = sum(d.number for d in due), due[0]
    most = "at least " if number >= diagnostics.MOST_DUE else ""
    fact = f"{most}{number} waiting, {oldest.name} in {oldest.queue} for {rough(oldest.waits)}"
    if oldest.waits > PATIENCE:
        advice = "See what runs: tasks-app list --state RUNNING. Start more workers."
        return [warn("due tasks", fact, advice)]
    return [ok("due tasks", fact)]


def what_runs(connection: Connection, settings: Settings) -> Callable[[str, str], bool]:
    """Return whether a task of this queue and name could run now, if it is due.

    Not in a queue that stands still, nor behind a breaker, nor if no live worker knows it.
    """
    still = standing_still(connection)
    known = heartbeats.known_names(connection, settings.lease)
    down = {
        name
        for each in circuit_breakers.find(connection)
        if each.state is not BreakerState.CLOSED
        for name in each.names
    }

    def runs(queue: str, name: str) -> bool:
        stands = EVERY_QUEUE in still or queue in still or name in down
        return not stands and name in known.get(queue, ())

    return runs
