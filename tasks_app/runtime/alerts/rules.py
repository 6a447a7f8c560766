"""The rules of alerts, built-in and of operators. They only read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, timedelta

from sqlalchemy import Connection

from tasks_app.domain.alerts import Alert, RuleKind, UserRule, describe_cause
from tasks_app.domain.config.settings import Settings
from tasks_app.domain.durations import count, rough_span
from tasks_app.domain.explain.facts import RunBy
from tasks_app.domain.statistics import CountedOutcome
from tasks_app.pool import metrics
from tasks_app.pool import scheduling as plans
from tasks_app.pool.batch.instances import biz_key
from tasks_app.pool.dispatch import leader_lease
from tasks_app.pool.events import count_waits
from tasks_app.pool.flows import count_open
from tasks_app.pool.fragments.conditions import stopped_queues
from tasks_app.pool.operations import trouble
from tasks_app.pool.retention import has_strays
from tasks_app.pool.runs import heartbeats
from tasks_app.pool.statistics.read import Grain, Wanted, history, minutes_not_rolled_up
from tasks_app.pool.tables import EVERY_QUEUE, database_now

Rule = Callable[[Connection, Settings], Iterator[Alert]]
SPAN = timedelta(minutes=10)  # in which errors and rescues are counted
STARTS = timedelta(seconds=30)  # a worker that stopped in order may be replaced by then
# children stand in for beat without a gap, so only a long absence matters
STANDS_IN = timedelta(minutes=5)
LATE = timedelta(minutes=1)
LATE_SCANS = 5


def scan(connection: Connection, settings: Settings) -> Iterator[Alert]:
    """No scan for long. A pool that only `tasks-app work` serves has the alerts on workers."""
    duty = leader_lease.read_lease(connection, leader_lease.SCAN)
    if duty is None or duty.idle is None or duty.rank == leader_lease.Rank.WORK:
        return
    if duty.idle > settings.alert_scan + LATE_SCANS * settings.scan_interval:
        fact = f"no process has scanned for {rough_span(duty.idle)}; the last was {duty.holder}"
        by = heartbeats.started_by(connection, settings.lease)
        yield Alert("scan", fact, by.start_scan)


def beat(connection: Connection, _settings: Settings) -> Iterator[Alert]:
    duty = leader_lease.read_lease(connection, leader_lease.SCAN)
    if duty and not duty.free and duty.rank < leader_lease.Rank.BEAT:
        yield Alert("beat", "no beat leads; a worker stands in", "Start beat.", STANDS_IN)


def broker(connection: Connection, settings: Settings) -> Iterator[Alert]:
    duty = leader_lease.read_lease(connection, leader_lease.SCAN)
    if heartbeats.started_by(connection, settings.lease) is RunBy.WORK:
        return  # the lease's notes are old
    since = duty.refused_since if duty else None
    if since is not None and database_now(connection) - since > LATE:
        fact = f"the broker has taken no messages since {since.astimezone(UTC):%Y-%m-%d %H:%M}Z"
        yield Alert("broker", fact, "Tasks wait in the database. Check the broker, and its log.")


def workers(connection: Connection, settings: Settings) -> Iterator[Alert]:
    if heartbeats.live_workers(connection, settings.lease):
        return
    silent = trouble.silent_nodes(connection, settings.lease)
    advice = heartbeats.started_by(connection, settings.lease).start_worker()
    if silent:
        fact = f"no worker is alive; {', '.join(list(silent)[:3])} fell silent"
        yield Alert("workers", fact, advice)
    else:
        yield Alert("workers", "no worker is alive", advice, STARTS)


def silent(connection: Connection, settings: Settings) -> Iterator[Alert]:
    if heartbeats.live_workers(connection, settings.lease):
        for node, silence in trouble.silent_nodes(connection, settings.lease).items():
            ago = rough_span(silence)
            fact = f"{node} sent its last heartbeat {ago} ago, and did not stop in order"
            advice = "Check whether it is stopped, hangs or is gone; start it again."
            yield Alert(f"silent:{node}", fact, advice)


def unserved(connection: Connection, settings: Settings) -> Iterator[Alert]:
    found = heartbeats.live_workers(connection, settings.lease)
    left = {queue for worker in found for queue in worker.queues} | stopped_queues(connection)
    if not found or EVERY_QUEUE in left:
        return
    for oldest in trouble.oldest_due(connection):
        if oldest.waits > settings.alert_due and oldest.queue not in left:
            fact = f"tasks are due in {oldest.queue}, which no worker serves"
            by = heartbeats.started_by(connection, settings.lease)
            advice = by.start_worker(oldest.queue)
            yield Alert(f"unserved:{oldest.queue}", fact, advice)


def unknown(connection: Connection, settings: Settings) -> Iterator[Alert]:
    known = heartbeats.handlers_by_queue(connection, settings.lease)
    for oldest in trouble.oldest_without_handler(connection):
        names = known.get(oldest.queue)
        if oldest.waits > settings.alert_due and names and oldest.name not in names:
            fact = f"tasks of {oldest.name} are due, which no worker of {oldest.queue} knows"
            advice = "Name its module in the TASKS_APP_IMPORTS of a worker."
            yield Alert(f"unknown:{oldest.name}", fact, advice)


def due(connection: Connection, settings: Settings) -> Iterator[Alert]:
    """A task waits while a worker that knows it is idle, and no run of the queue ended lately."""
    still = stopped_queues(connection)
    if EVERY_QUEUE in still:
        return
    found = heartbeats.live_workers(connection, settings.lease)
    for oldest in trouble.oldest_free(connection):
        if oldest.moves or oldest.queue in still or oldest.waits <= settings.alert_due:
            continue
        if any(
            oldest.queue in worker.queues
            and oldest.name in worker.handlers
            and len(worker.running) < worker.threads
            for worker in found
        ):
            waits = rough_span(oldest.waits)
            fact = f"{oldest.name} in {oldest.queue} has waited for {waits}, and a worker is idle"
            advice = "See why: tasks-app explain ID. Check the broker, and the worker's log."
            yield Alert(f"due:{oldest.queue}", fact, advice)


def rescues(connection: Connection, settings: Settings) -> Iterator[Alert]:
    wanted = Wanted(Grain.MINUTE, SPAN, outcomes=(CountedOutcome.RESCUED,))
    since = database_now(connection) - SPAN
    points = [*history(connection, wanted), *minutes_not_rolled_up(connection, wanted)]
    number = sum(point.number for point in points if point.at > since)
    if number >= settings.alert_rescues:
        fact = f"{number} tasks were rescued from lost processes in ten minutes"
        advice = "Workers die, or cannot renew: read their logs, and check memory and network."
        yield Alert("rescues", fact, advice)


def schedule(connection: Connection, settings: Settings) -> Iterator[Alert]:
    now = database_now(connection)
    for each in plans.find(connection):
        if not each.enabled:
            continue
        if each.remark is not None:
            advice = f"Repair it: tasks-app schedules change {each.name}"
            yield Alert(f"schedule:{each.name}", f"{each.name} is broken", advice)
        elif each.next_run_at is not None and now - each.next_run_at > LATE:
            fact = f"{each.name} should have fired {rough_span(now - each.next_run_at)} ago"
            by = heartbeats.started_by(connection, settings.lease)
            yield Alert(f"schedule:{each.name}", fact, f"No process scans. {by.start_scan}")


def batch(connection: Connection, settings: Settings) -> Iterator[Alert]:
    for each in trouble.stalled_batches(connection, settings.alert_batch):
        fact = f"batch {each.id} of {each.job} has not moved for {rough_span(settings.alert_batch)}"
        advice = f"tasks-app batch show {each.id}; tasks-app list --biz-key {biz_key(each.id)}"
        yield Alert(f"batch:{each.id}", fact, advice)


def flows(connection: Connection, _settings: Settings) -> Iterator[Alert]:
    if stalled := count_open(connection)["stalled"]:
        stand = "flow stands" if stalled == 1 else "flows stand"
        fact = f"{stalled} {stand} because a step failed"
        yield Alert("flows", fact, "See them: tasks-app flows list --state stalled", LATE)


def events(connection: Connection, settings: Settings) -> Iterator[Alert]:
    oldest = count_waits(connection).oldest
    if oldest is not None and oldest > settings.alert_events:
        fact = f"a task has waited for an event for {rough_span(oldest)}"
        yield Alert("events", fact, "See what is to be sent: tasks-app events list --waiting")


def partitions(connection: Connection, settings: Settings) -> Iterator[Alert]:
    ahead = metrics.days_partitioned_ahead(connection)
    if ahead < settings.alert_partitions:
        fact = f"partitions reach {count(max(0, ahead), 'day')} ahead"
        by = heartbeats.started_by(connection, settings.lease)
        advice = f"Start {by.scanner} as the owner of the tables, or run: tasks-app migrate"
        yield Alert("partitions", fact, advice)


def default_partition(connection: Connection, _settings: Settings) -> Iterator[Alert]:
    if has_strays(connection):
        advice = "Move them as docs/operations/maintenance.md says."
        yield Alert("default-partition", "task_completed_default holds rows", advice)


def bursts(connection: Connection, settings: Settings) -> Iterator[Alert]:
    for burst in trouble.bursts(connection, settings.alert_errors, SPAN):
        cause = describe_cause(burst.kind, burst.names, burst.queues)
        fact = f"{burst.number} tasks failed in ten minutes: {cause}"
        advice = f"tasks-app errors show {burst.fingerprint}"
        yield Alert(f"error-burst:{burst.fingerprint}", fact, advice)


def snapshot(connection: Connection, settings: Settings) -> Iterator[Alert]:
    age = metrics.snapshot_age(connection)
    if age >= settings.alert_snapshot:
        fact = f"a session has held a snapshot for {age} transactions"
        yield Alert("snapshot", fact, "Find it in pg_stat_activity by its old backend_xmin.")


def user(connection: Connection, settings: Settings) -> Iterator[Alert]:
    for rule in settings.user_rules:
        fact = _fact(connection, rule, settings)
        if fact:
            yield Alert(rule.key, fact, _ADVICE[rule.kind])


FEWEST_RUNS = 10  # a share of fewer says nothing
_RUNS = (CountedOutcome.DONE, CountedOutcome.FAILED, CountedOutcome.RETRIED)
_ADVICE = {
    RuleKind.FAILED: "See them: tasks-app errors",
    RuleKind.RATIO: "See them: tasks-app errors",
    RuleKind.AGE: "See what runs: tasks-app list --state RUNNING. Start more workers.",
    RuleKind.PENDING: "See what waits: tasks-app stats. Start more workers.",
    RuleKind.SILENCE: "See if it is created, waits or fails: tasks-app list, tasks-app errors",
}


def _fact(connection: Connection, rule: UserRule, settings: Settings) -> str:
    span = rough_span(rule.span)
    match rule.kind:
        case RuleKind.FAILED:
            number = sum(_ended(connection, rule, (CountedOutcome.FAILED,), settings).values())
            return f"{number} of {rule.target} failed in {span}" if number > rule.limit else ""
        case RuleKind.RATIO:
            ended = _ended(connection, rule, _RUNS, settings)
            runs = sum(ended.values())
            share = 1 - ended.get(CountedOutcome.DONE, 0) / max(1, runs)
            if runs < FEWEST_RUNS or share <= rule.limit:
                return ""
            return f"{share:.0%} of {runs} runs of {rule.target} did not succeed in {span}"
        case RuleKind.AGE:
            ages = {each.queue: each.waits for each in trouble.oldest_due(connection)}
            oldest = ages.get(rule.queue or "", timedelta(0))
            return f"a task of {rule.target} is due for {rough_span(oldest)}" * (oldest > rule.span)
        case RuleKind.PENDING:
            limit = int(rule.limit)
            above = trouble.more_than(connection, limit, queue=rule.queue, name=rule.name)
            return f"more than {limit} of {rule.target} wait" * above
        case RuleKind.SILENCE:
            done = sum(_ended(connection, rule, (CountedOutcome.DONE,), settings).values())
            return "" if done else f"none of {rule.target} has succeeded for {span}"


def _ended(
    connection: Connection, rule: UserRule, outcomes: tuple[CountedOutcome, ...], settings: Settings
) -> dict[CountedOutcome, int]:
    """Count what ended in the span, its first minute whole; in hours where minutes are deleted."""
    fine = rule.span <= settings.keep_minute_counts
    grain = Grain.MINUTE if fine else Grain.HOUR
    wanted = Wanted(grain, rule.span, rule.name, rule.queue, outcomes)
    since = database_now(connection) - rule.span - timedelta(minutes=grain)
    found: dict[CountedOutcome, int] = {}
    for point in (*history(connection, wanted), *minutes_not_rolled_up(connection, wanted)):
        if point.at > since:
            found[point.outcome] = found.get(point.outcome, 0) + point.number
    return found


RULES: dict[str, Rule] = {
    **{rule.__name__: rule for rule in (scan, beat, broker, workers, silent, unserved, unknown)},
    **{rule.__name__: rule for rule in (due, rescues, schedule, batch, flows, events)},
    **{rule.__name__: rule for rule in (partitions, snapshot)},
    "default-partition": default_partition,
    "error-burst": bursts,
    "rule": user,
}
