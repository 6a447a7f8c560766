"""The settings of alerts: who is told, and from when on."""

from __future__ import annotations

from datetime import timedelta

from tasks_app.domain.alerts import UserRule
from tasks_app.domain.alerts import parse_rules
from tasks_app.domain.config.field_types import Mail, Positive, Span, UserRules, Webhook
from tasks_app.domain.config.framework_settings import LayeredSettings


class AlertSettings(LayeredSettings):
    """A part of ``Settings``."""

    alert_webhook: Webhook | None = None
    """Where alerts are posted as JSON: `https://…`. With it, or the two below, the leader watches,
    and `tasks-app dashboard` and `metrics` do."""
    alert_mail: Mail | None = None
    """By which server they are mailed:
    `smtps://user:password@host/?from=tasks@example.org&to=ops@example.org,boss@example.org`."""
    alert_log: bool = False
    """Log alerts, though they are neither posted nor mailed."""
    alerts: UserRules = ""
    """Rules of your own, separated by `;`: `failed queue=mail > 10 in 5m; silence name=bill > 25h`.
    """
    alert_errors: Positive = 20
    """So many tasks that fail in ten minutes by one cause nobody marked as known are an alert."""
    alert_snapshot: Positive = 1_000_000
    """A snapshot that somebody holds for so many transactions is an alert: no row can be cleared
    away meanwhile."""
    alert_scan: Span = timedelta(seconds=30)
    """So long without a scan, and five scan intervals more, is an alert."""
    alert_due: Span = timedelta(minutes=1)
    """A task that is due for longer, while a worker is idle or no worker may run it, is an alert.
    """
    alert_rescues: Positive = 50
    """So many tasks whose process was lost, in ten minutes, are an alert."""
    alert_batch: Span = timedelta(minutes=30)
    """A running batch that did not move for so long is an alert."""
    alert_partitions: Positive = 3
    """Fewer days of partitions ahead are an alert; maintenance makes 14."""
    keep_alerts: Span = timedelta(days=30)
    """How long alerts that are over are kept."""

    @property
    def user_rules(self) -> tuple[UserRule, ...]:
        return parse_rules(self.alerts)
