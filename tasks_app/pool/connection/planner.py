"""How our own statements are planned, whatever the role's or the database's settings are."""

from __future__ import annotations

PLANNED = {
    # Our statements look rows up by key, a group at a time. Planned while the pool was empty, or
    # by yesterday's statistics, they would read whole tables: so the planner gets no choice.
    "plan_cache_mode": "force_generic_plan",
    **dict.fromkeys(
        ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin"), "off"
    ),
    # Up to PostgreSQL 17, what is off adds 1e10 to the cost of a plan that cannot do without it (18
    # counts it apart). Above jit_above_cost the server compiles: a second for a millisecond's work.
    "jit": "off",
}
"""For our own statements; the SQL of handlers is planned as their role says."""
IN_FUNCTION = "\n".join(f"SET {name} TO {value}" for name, value in PLANNED.items())
"""The same of a function that others call, in sessions that are not ours."""
