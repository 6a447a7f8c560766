"""Logical locks on groups of named resources.

A group is one row of ``task_lock_holder`` and one of ``task_lock_part`` for each resource. Who
decides about a resource locks its row in ``task_lock`` first; all do so in the same order.

A holder whose lease is over, or whose task does not run any more, still holds until somebody wants
the resource: he then deletes the holder's row, unless it is locked. So who renews it in time, or
has it under a guard in an open transaction, keeps it; and who finds it gone has lost it.
"""

from __future__ import annotations

from tasks_app.domain.tasks.states import State
from tasks_app.pool.tables import NOW, PENDING

OVER = f"""(h.task_id IS NOT NULL AND NOT EXISTS (
    SELECT FROM {PENDING} t WHERE t.id = h.task_id AND t.attempt = h.attempt
      AND t.lease_token = h.lease_token AND t.state = '{State.RUNNING}'))"""
"""Its run has ended. That is final: a run that has lost its fence never has it again."""
NO_FLUSH = "set_config('synchronous_commit', 'off', true)"
"""For a transaction of our own that grants nothing: its COMMIT does not wait for the disk. Should
the server crash, who stood in line asks again, and what was released ends with its lease. The
flush of the next grant takes it along."""
UNHURRIED = f"""unhurried AS MATERIALIZED (
    SELECT {NO_FLUSH}, set_config('lock_timeout', '1000', true))"""
DEAD = f"(h.lease_until <= {NOW} OR {OVER})"
