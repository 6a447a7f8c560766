"""Commands on what may run when: queues, limits, breakers, fair shares."""

from __future__ import annotations
