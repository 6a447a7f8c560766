"""What must hold at the end of the day. Each check asks tables and mail server, not the code."""

from __future__ import annotations

from collections.abc import Callable

from shop.checks_pool import (
    accidents_happened,
    effects_match_outcomes,
    nobody_else_is_charged,
    nothing_is_lost,
    poison_is_put_away,
    refused_mail_is_in_the_error_pool,
)
from shop.checks_shop import (
    confirmations_arrived,
    only_unpaid_orders_are_cancelled,
    payslips_are_mailed,
    points_are_granted_once,
    rolled_back_orders_left_nothing,
)
from shop.evidence import Evidence, Verdict

CHECKS: tuple[Callable[[Evidence], Verdict], ...] = (
    points_are_granted_once,
    rolled_back_orders_left_nothing,
    confirmations_arrived,
    payslips_are_mailed,
    only_unpaid_orders_are_cancelled,
    poison_is_put_away,
    nobody_else_is_charged,
    refused_mail_is_in_the_error_pool,
    accidents_happened,
    nothing_is_lost,
    effects_match_outcomes,
)


def run_checks(evidence: Evidence) -> list[Verdict]:
    """Run all checks."""
    return [check(evidence) for check in CHECKS]
