"""The demo's clock: everything that is shortened so that a shop's day passes in half a minute."""

from __future__ import annotations

RETRY_WAITS = "500ms,1s,1s"
"""A real shop would say ``"5s,30s,5m"``."""
MAIL_WAITS = "500ms,1s,1s,2s,2s,4s,4s"
"""A real shop would say ``"30s,5m,15m,1h,6h,1d"``: mail servers ask for patience."""
PAY_WITHIN = "6s"
"""A real shop would say ``"2d"``."""
ON_THE_WAY_S = 3
"""How many seconds a parcel travels. A real one takes days."""
LOOK_AGAIN = "1s"
"""A real shop would look for the parcel every few hours."""

ORDERS_TAKE_S = 8.0
"""How long the shop is open."""
PICTURES_AT_S, PAYROLL_AT_S = 1.0, 2.5
MAIL_IS_DOWN_S = (4.0, 7.0)
"""From when to when nobody answers at the mail server's door."""

WORKER_DIES_AT_S = 4.5
BROKER_FORGETS_AFTER_S, WORKER_RETURNS_AFTER_S = 0.5, 1.0
"""Seconds after the worker's death: in between, nobody reads the messages."""
WORST_MOMENT_S = 2.0
"""How long each accident may wait for something to break."""

WORKER_PACE = {
    "TASKS_APP_LEASE": "4s",
    "TASKS_APP_SCAN_INTERVAL": "250ms",
}
"""The defaults are 30 s and 1 s."""
SHORTENED = "leases 4 s (usually 30 s), scans 250 ms (1 s), retries 0.5-4 s (minutes to hours)"
