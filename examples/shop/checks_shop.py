"""What the shop's owner expects of the evening."""

from __future__ import annotations

from shop.evidence import Evidence, Verdict


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
        if evidence.keys_of_mails_about(f"order:{order}") != {keys.get(f"order:{order}")}
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
    mailed = [s for s in slips if s.mailed_at and evidence.keys_of_mails_about(f"payslip:{s.id}")]
    return Verdict(
        0 < len(mailed) == len(slips),
        "Every payslip was mailed",
        f"{len(mailed)} of {len(slips)}",
    )


def only_unpaid_orders_are_cancelled(evidence: Evidence) -> Verdict:
    """Each unpaid order once; a paid one never, however it was paid."""
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
