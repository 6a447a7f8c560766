"""What tasks_app promises: nobody pays for others, nothing is lost, effects match outcomes."""

from __future__ import annotations

from shop.evidence import Evidence, Verdict

EFFECTS = (
    ("points.grant", "SELECT count(*) FROM demo_shop.points"),
    ("coupon.issue", "SELECT count(*) FROM demo_shop.coupons"),
    ("order.cancel_unpaid", "SELECT count(*) FROM demo_shop.cancellations"),
    ("parcel.book", "SELECT count(*) FROM demo_shop.parcels"),
    ("review.ask", "SELECT count(*) FROM demo_shop.parcels WHERE review_asked_at IS NOT NULL"),
    ("payslip.mail", "SELECT count(*) FROM demo_shop.payslips WHERE mailed_at IS NOT NULL"),
    ("thumbnail.make", "SELECT count(*) FROM demo_shop.pictures WHERE thumbnail_at IS NOT NULL"),
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
    """A task's failures are its own exceptions: the death of a neighbour costs it nothing."""
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


def accidents_happened(evidence: Evidence) -> Verdict:
    """Without accidents the other checks would prove little."""
    in_hand, forgotten = evidence.diary.in_hand, evidence.diary.forgotten
    crashed = evidence.number("SELECT count(*) FROM task WHERE crashes > 0")
    return Verdict(
        in_hand is not None and forgotten is not None,
        "Half way the worker was killed and the broker was emptied",
        f"tasks in hand: {in_hand}; {crashed} came back by their lease,"
        f" {forgotten} messages forgotten",
    )


def nothing_is_lost(evidence: Evidence) -> Verdict:
    """Each created task is in one terminal pool, once, and nothing else is there."""
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


def _named(names: list[str]) -> str:
    return f": {', '.join(names)}" if names else ""
