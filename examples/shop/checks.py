"""What must hold at the end of the day. Each check asks tables and mail server, not the code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from shop.diary import Diary
from shop.figures import ask


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that a check may look at."""

    connection: Connection
    diary: Diary
    mails: Mapping[tuple[str, str], int]
    """How often the mail server accepted each (about, idempotency key)."""

    def rows(self, sql: str, **values: object) -> list[Any]:
        """Ask the database about today."""
        return ask(self.connection, self.diary, sql, **values)

    def number(self, sql: str, **values: object) -> int:
        """Ask for one number."""
        [(number,)] = self.rows(sql, **values)
        return int(number)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check found."""

    holds: bool
    claim: str
    figure: str


def run_checks(evidence: Evidence) -> list[Verdict]:
    """Run all checks."""
    return [check(evidence) for check in CHECKS]


def points_are_granted_once(evidence: Evidence) -> Verdict:
    """Not once too few, not once too many."""
    orders = set(evidence.diary.orders)
    granted = evidence.rows("SELECT order_id, count(*) FROM demo_shop.points GROUP BY 1")
    wrong = orders ^ {order for order, times in granted if times == 1}
    return Verdict(
        not wrong,
        "Every order has its points exactly once",
        f"{len(orders)} orders, {sum(row.count for row in granted)} grants, {len(wrong)} wrong",
    )


def rolled_back_orders_left_nothing(evidence: Evidence) -> Verdict:
    """Neither the order nor any of its tasks was ever there, in any pool."""
    diary = evidence.diary
    about = [f"order:{order}" for order in diary.rolled_back]
    tasks = evidence.number(
        "SELECT count(*) FROM task WHERE biz_key = ANY(:about) OR id = ANY(:ids)",
        about=about,
        ids=list(diary.never_created),
    )
    rows = evidence.number(
        "SELECT (SELECT count(*) FROM demo_shop.orders WHERE id = ANY(:orders))"
        " + (SELECT count(*) FROM demo_shop.points WHERE order_id = ANY(:orders))",
        orders=list(diary.rolled_back),
    )
    return Verdict(
        tasks == rows == 0,
        "Orders that were rolled back left no task and no points",
        f"{len(about)} rolled back, {tasks} tasks, {rows} rows",
    )


def confirmations_arrived(evidence: Evidence) -> Verdict:
    """At least once, and each copy under the task's one key."""
    expected = set(evidence.diary.orders) - set(evidence.diary.refused)
    keys = {
        row.biz_key: str(row.idempotency_key)
        for row in evidence.rows("SELECT * FROM task WHERE name = 'order.confirm'")
    }
    wrong = [
        order
        for order in expected
        if set(_mails_about(evidence, f"order:{order}")) != {keys.get(f"order:{order}")}
    ]
    sent = sum(times for (about, _), times in evidence.mails.items() if about.startswith("order:"))
    return Verdict(
        not wrong,
        "Every order was confirmed, under one key whatever went wrong",
        f"{sent} mails for {len(expected)} orders, {max(0, sent - len(expected))} duplicates",
    )


def payslips_are_mailed(evidence: Evidence) -> Verdict:
    """Both sides agree: the mail server got it, and the shop remembers."""
    slips = evidence.rows("SELECT id, mailed_at FROM demo_shop.payslips")
    mailed = [s for s in slips if s.mailed_at and _mails_about(evidence, f"payslip:{s.id}")]
    return Verdict(
        0 < len(mailed) == len(slips),
        "Every payslip was mailed",
        f"{len(mailed)} of {len(slips)}",
    )


def only_unpaid_orders_are_cancelled(evidence: Evidence) -> Verdict:
    """Each unpaid one once; a paid one never, whichever way it was paid."""
    orders = evidence.rows(
        "SELECT o.id, o.paid_at, o.cancelled_at, count(c.id) AS times FROM demo_shop.orders o"
        " LEFT JOIN demo_shop.cancellations c ON c.order_id = o.id GROUP BY o.id"
    )
    unpaid = [order for order in orders if order.paid_at is None]
    wrong = [
        order
        for order in orders
        if order.times != (order.paid_at is None) or (order.cancelled_at is None) == order.times
    ]
    return Verdict(
        not wrong,
        "Every unpaid order was cancelled exactly once, no paid one",
        f"{len(unpaid)} unpaid, {len(orders) - len(unpaid)} paid, {len(wrong)} wrong",
    )


def poison_is_put_away(evidence: Evidence) -> Verdict:
    """Three runs, three dead processes, then the error pool with the cause."""
    poison = list(evidence.diary.poison)
    rows = evidence.rows("SELECT * FROM task WHERE id = ANY(:ids)", ids=poison)
    deaths = evidence.number(
        "SELECT count(*) FROM attempt WHERE task_id = ANY(:ids) AND kind = 'process died'",
        ids=poison,
    )
    put_away = [
        row
        for row in rows
        if (row.pool, row.failures) == ("error", 3) and row.error.startswith("process died")
    ]
    return Verdict(
        len(put_away) == len(poison) and deaths == 3 * len(poison),
        "The poison task lies in the error pool with its cause, after 3 runs",
        f"{deaths} processes killed, {len(put_away)} in the error pool",
    )


def nobody_else_is_charged(evidence: Evidence) -> Verdict:
    """A task's failures are its own exceptions: a neighbour's death costs it nothing."""
    charged = evidence.number(
        """SELECT count(*) FROM task t WHERE NOT t.id = ANY(:poison) AND t.failures <> (
            SELECT count(*) FROM attempt a WHERE a.task_id = t.id AND a.event IN ('retry', 'fail')
            AND a.kind NOT IN ('process died', 'worker vanished', 'outcome unknown'))""",
        poison=list(evidence.diary.poison),
    )
    again = evidence.number(
        "SELECT coalesce(sum(failures), 0) FROM task WHERE NOT id = ANY(:poison)",
        poison=list(evidence.diary.poison),
    )
    return Verdict(
        charged == 0,
        "Nobody else was charged for it",
        f"{again} failures, all raised by their own handler; {charged} tasks charged wrongly",
    )


def refused_mail_is_in_the_error_pool(evidence: Evidence) -> Verdict:
    """A 5xx is final: one run, and the code is there to be read."""
    errors = evidence.rows(
        "SELECT pool, error FROM task WHERE name = 'order.confirm' AND biz_key = ANY(:about)",
        about=[f"order:{order}" for order in evidence.diary.refused],
    )
    found = [row for row in errors if row.pool == "error" and "SMTP 550" in row.error]
    return Verdict(
        0 < len(found) == len(errors) == len(evidence.diary.refused),
        "The refused address lies in the error pool with its SMTP code",
        ", ".join(row.error.rpartition(".")[2] for row in found) or "not there",
    )


def nothing_is_lost(evidence: Evidence) -> Verdict:
    """Each task that was created lies in one terminal pool, once, and nothing else does."""
    rows = evidence.rows("SELECT id, pool FROM task")
    created = set(evidence.diary.created)
    by_tasks = evidence.number("SELECT count(*) FROM demo_shop.parcels")
    over = [row.id for row in rows if row.pool != "pending"]
    twice = len(rows) - len({row.id for row in rows})
    missing = created - set(over)
    return Verdict(
        not missing and not twice and len(over) == len(rows) == len(created) + by_tasks,
        "Nothing is lost, nothing is in two pools",
        f"{len(created)} created by the shop + {by_tasks} by tasks, {len(over)} finished,"
        f" {twice} twice",
    )


def effects_match_outcomes(evidence: Evidence) -> Verdict:
    """As many effects in the shop's tables as tasks that succeeded."""
    done = dict(
        evidence.rows("SELECT name, count(*) FROM task WHERE state = 'SUCCEEDED' GROUP BY 1")
    )
    effects = {name: evidence.number(sql) for name, sql in EFFECTS}
    wrong = [name for name in effects if effects[name] != done.get(name, 0)]
    return Verdict(
        not wrong,
        "Effects in the shop's tables match the outcomes",
        f"{sum(effects.values())} effects, {len(wrong)} kinds differ{_named(wrong)}",
    )


EFFECTS = (
    ("points.grant", "SELECT count(*) FROM demo_shop.points"),
    ("coupon.issue", "SELECT count(*) FROM demo_shop.coupons"),
    ("order.cancel_unpaid", "SELECT count(*) FROM demo_shop.cancellations"),
    ("parcel.book", "SELECT count(*) FROM demo_shop.parcels"),
    ("review.ask", "SELECT count(*) FROM demo_shop.parcels WHERE review_asked_at IS NOT NULL"),
    ("payslip.mail", "SELECT count(*) FROM demo_shop.payslips WHERE mailed_at IS NOT NULL"),
    ("thumbnail.make", "SELECT count(*) FROM demo_shop.pictures WHERE thumbnail_at IS NOT NULL"),
)

CHECKS: tuple[Callable[[Evidence], Verdict], ...] = (
    points_are_granted_once,
    rolled_back_orders_left_nothing,
    confirmations_arrived,
    payslips_are_mailed,
    only_unpaid_orders_are_cancelled,
    poison_is_put_away,
    nobody_else_is_charged,
    refused_mail_is_in_the_error_pool,
    nothing_is_lost,
    effects_match_outcomes,
)


def _mails_about(evidence: Evidence, about: str) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for (topic, key), times in evidence.mails.items():
        if topic == about:
            found[key] += times
    return found


def _named(names: list[str]) -> str:
    return f": {', '.join(names)}" if names else ""
