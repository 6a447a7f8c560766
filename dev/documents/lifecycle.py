"""docs/lifecycle.md from TRANSITIONS, so that diagram and code cannot disagree."""

from __future__ import annotations

from tasks_app.domain.tasks.states import TRANSITIONS, Event, Pool, State, states_in

_WHAT = {
    Event.CLAIM: "a worker takes it by compare-and-set; `attempt` + 1",
    Event.SUCCEED: "its handler returned",
    Event.SKIP: "the handler raised `Skip`, or the row was disabled when it became due",
    Event.CANCEL: "somebody stopped it, or the handler raised `Cancel`",
    Event.EXPIRE: "it became due after `expires_at`",
    Event.FAIL: "out of attempts, `Fail`, or an outcome that nobody knows",
    Event.RETRY: "it failed and will be tried again; `failures` + 1",
    Event.SNOOZE: "the handler asked for later; nothing is charged",
    Event.RELEASE: "given back before it started, or through no fault of its own",
    Event.RESCUE: "its worker vanished; `crashes` + 1",
    Event.REQUEUE: "an operator returns it; `failures`, `crashes` and `retry_level` are 0 again",
}


def page() -> str:
    lines = [
        "# The life of a task",
        "",
        "Generated from `tasks_app/domain/tasks/states.py` by `make docs`; edit that, not this.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        "    [*] --> PENDING: create",
    ]
    lines += [f"    {s} --> {to}: {event}" for (s, event), to in TRANSITIONS.items()]
    lines += ["```", "", "| event | from | to | when |", "|---|---|---|---|"]
    for event in Event:
        moves = [(s, to) for (s, e), to in TRANSITIONS.items() if e is event]
        sources = ", ".join(s for s, _ in moves)
        targets = ", ".join(dict.fromkeys(to for _, to in moves))
        lines.append(f"| {event} | {sources} | {targets} | {_WHAT[event]} |")
    lines += ["", "| pool | table | states |", "|---|---|---|"]
    for pool in Pool:
        lines.append(f"| {pool} | `task_{pool}` | {', '.join(states_in(pool))} |")
    lines += [
        "",
        "A task that was cancelled while it ran never comes back: every way from",
        f"{State.RUNNING} to {State.PENDING} or {State.FAILED} then leads to {State.CANCELLED}.",
        "",
    ]
    return "\n".join(lines)
