"""The kinds of faults, one by one: each is tried alone, on a world of its own.

The names in front are those of the project's fault table; what happens inside of a process is a
failpoint, what happens to it or around it a function.
"""

from __future__ import annotations

from dataclasses import dataclass

from dev.torture import cancels, faults, operators, outages
from dev.torture.failpoints import Failpoint, read
from dev.torture.surroundings import Surroundings
from dev.torture.world import Hurt

OFTEN, RARELY = 0.2, 0.025


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault."""

    name: str
    hurt: Hurt | None = None
    """Done about once a second."""
    failpoints: str = ""
    cancels: bool = False
    """Some tasks end CANCELLED."""
    loses: bool = False
    """It is a snare: it happens when the next statement of its sort comes by."""


def _inside(fault: str, what: str, *failpoints: str) -> Kind:
    return Kind(f"{fault} {what}", failpoints="; ".join(failpoints))


def _around(fault: str, hurt: Hurt, *, cancels: bool = False, loses: bool = False) -> Kind:
    words = (hurt.__doc__ or "").split(" (F")[0].rstrip(".")
    if words[1].islower() or words[1] == " ":  # no abbreviation
        words = words[0].lower() + words[1:]
    return Kind(f"{fault} {words}", hurt, cancels=cancels, loses=loses)


KINDS: tuple[Kind, ...] = (
    _inside("F01", "killed with a message, before the claim", "message.received=kill@0.2"),
    _inside("F01", "killed as it claims", "claim.before=kill@0.1"),
    _inside("F02", "killed after the claim", f"claim.committed=kill@{OFTEN}"),
    _inside("F03", "killed before the handler", f"handler.before=kill@{RARELY}"),
    _inside("F03", "killed after the handler", f"handler.returned=kill@{RARELY}"),
    _inside(
        "F04", "killed before settle and COMMIT",
        f"effect.before=kill@{RARELY}", "late.before=kill@0.1",
    ),
    _inside("F04", "killed with the COMMIT on its way", f"end.sent=kill@{RARELY}"),
    _inside(
        "F05", "killed after the COMMIT",
        f"effect.committed=kill@{RARELY}", "late.committed=kill@0.1",
    ),
    _inside("F05", "killed after the message ended", "message.ended=kill@0.3"),
    _inside("F42", "exits after the handler", f"handler.returned=exit:1@{RARELY}"),
    _inside("F42", "raises where nobody expects it", f"claim.committed=raise@{OFTEN}"),
    _inside(
        "F42", "raises at the COMMIT",
        f"effect.before=raise@{RARELY}", "late.before=raise@0.1",
    ),
    _inside("F42", "raises as it renews", "renew.before=raise@0.5"),
    _inside("F42", "raises as it scans", "dispatch.found=raise@0.2", "sweep.before=raise@0.5"),
    _inside("F02", "stalls after the claim, beyond its lease", f"claim.committed=sleep:4@{OFTEN}"),
    _inside("F09", "stopped after the claim", f"claim.committed=stop@{OFTEN}"),
    _inside("F09", "stopped with the COMMIT on its way", f"end.sent=stop@{RARELY}"),
    _inside("F10", "holds the interpreter beyond its lease", "handler.before=hog:4@0.01"),
    _inside("F10", "renews too late", "renew.before=sleep:4@0.2"),
    _inside("F11", "cut off as it claims", f"claim.before=cut@{OFTEN}"),
    _inside("F11", "cut off in the handler", f"handler.returned=cut@{RARELY}"),
    _inside("F11", "cut off with the COMMIT on its way", f"end.sent=cut@{RARELY}"),
    _inside("F11", "cut off as it renews", "renew.before=cut@0.3"),
    _inside("F37", "a scanner dies before its COMMIT", "dispatch.found=kill@0.2"),
    _inside("F37", "a scanner dies before it publishes", "dispatch.before=kill@0.2"),
    _inside("F37", "a scanner dies after it published", "dispatch.published=kill@0.2"),
    _inside("F14", "a scanner is cut off before it publishes", "dispatch.before=cut@0.3"),
    _inside("F38", "a leader dies as it takes the lead", "lead.taken=kill@0.3"),
    _inside("F38", "a leader stops as it takes the lead", "lead.taken=stop@0.3"),
    _inside(
        "F07", "a reaper dies before it reaps",
        f"claim.committed=kill@{OFTEN}", "reap.before=kill@0.5",
    ),
    _inside(
        "F07", "a reaper dies after it reaped",
        f"claim.committed=kill@{OFTEN}", "reap.committed=kill@0.02",
    ),
    _inside("F37", "a rescuer dies before it rescues", "rescue.before=kill@0.4"),
    _inside("F37", "a rescuer dies after it rescued", "rescue.committed=kill@0.4"),
    _inside("F37", "dies as it fires schedules", "fire.before=kill@0.5"),
    _inside("F37", "dies between an instant and its task", "fire.entered=kill@0.5"),
    _inside("F37", "dies after it fired schedules", "fire.committed=kill@0.5"),
    _inside("F38", "stops between an instant and its task", "fire.entered=stop@0.5"),
    _inside("F14", "is cut off between an instant and its task", "fire.entered=cut@0.7"),
    _around("F03", faults.kill_child),
    _around("F07", faults.kill_parent),
    _around("F06", faults.kill_worker),
    _around("F08", faults.drain_worker),
    _around("F08", faults.quit_worker),
    _around("F09", faults.freeze_worker),
    _around("F09", faults.freeze_child),
    _around("F37", faults.kill_beat),
    _around("F38", faults.freeze_beat),
    _around("F16", faults.kill_broker),
    _around("F11", outages.cut_database),
    _around("F12", outages.hush_database),
    _around("F13", outages.cut_broker),
    _around("F13", outages.hush_broker),
    _around("F15", outages.restart_broker),
    _around("F16", outages.flush_broker),
    _around("F16", outages.lose_messages),
    _around("F17", outages.repeat_messages),
    _around("F18", outages.replay_messages),
    _around("F19", outages.fill_broker),
    _around("F22", outages.restart_database),
    _around("F24", outages.lose_claim, loses=True),
    _around("F24", outages.lose_settle, loses=True),
    _around("F24", outages.lose_commit, loses=True),
    _around("F24", outages.lose_commit_request, loses=True),
    _around("F25", outages.lock_rows),
    _around("F27", outages.lock_pool),
    _around("F27", outages.cancel_statements),
    _around("F29", outages.crowd_database),
    _around("F30", outages.read_only),
    _around("F32", outages.terminate_backends),
    _around("F32", outages.terminate_idle),
    _around("F34", outages.hold_snapshot),
    _around("F49", outages.forge_messages),
    _around("F49", outages.send_to_another_pool),
    _around("F55", operators.hold_producers),
    _around("F57", operators.cancel_some, cancels=True),
    _around("F57", cancels.cancel_running, cancels=True),
    _around("F57", operators.pause_and_resume),
    _around("F57", operators.pause_beside_a_limit),
    _around("F57", operators.set_odd_settings),
    _around("F57", operators.cancel_and_requeue, cancels=True),
)  # fmt: skip

OF_A_POOLER: tuple[Kind, ...] = (
    _inside("F04", "killed with the COMMIT on its way, pooled", f"end.sent=kill@{RARELY}"),
    _inside("F11", "cut off with the COMMIT on its way, pooled", f"end.sent=cut@{RARELY}"),
    _around("F11", outages.cut_pooler),
    _around("F12", outages.hush_pooler),
    _around("F22", outages.restart_pooler),
    _around("F24", outages.lose_commit_behind, loses=True),
)
"""Only where a PgBouncer stands between."""

OF_BATCHES: tuple[Kind, ...] = (
    _inside("F04", "killed between a chunk and its checkpoint", "chunk.before=kill@0.15"),
    _inside("F04", "killed between a checkpoint and its COMMIT", "chunk.told=kill@0.15"),
    _inside("F05", "killed after the COMMIT of a chunk", "chunk.committed=kill@0.15"),
    _inside("F09", "stopped before the COMMIT of a chunk", "chunk.told=stop@0.3"),
    _inside("F10", "holds the interpreter in a chunk", "chunk.before=hog:4@0.1"),
    _inside("F11", "cut off before the COMMIT of a chunk", "chunk.told=cut@0.2"),
    _inside("F42", "raises before the COMMIT of a chunk", "chunk.told=raise@0.25"),
    _inside("F11", "cut off before the COMMIT of a decision", "step.entered=cut@0.7"),
)
"""Only where a batch job runs beside the tasks."""

BROKEN_LINES = frozenset({
    *(faults.kill_broker, faults.kill_beat, faults.freeze_beat),
    *(outages.cut_broker, outages.hush_broker, outages.restart_broker, outages.flush_broker),
    *(outages.lose_messages, outages.repeat_messages, outages.replay_messages),
    *(outages.fill_broker, outages.forge_messages, outages.send_to_another_pool),
})  # fmt: skip
"""What only those feel who have a broker or a beat."""


def kinds_on(surroundings: Surroundings, *, batches: bool = False) -> tuple[Kind, ...]:
    """Return all that can happen there; ``batches``: to a batch job, too."""
    of_a_pooler = OF_A_POOLER if surroundings.pgbouncer else ()
    return (*KINDS, *of_a_pooler, *(OF_BATCHES if batches else ()))


def together(
    surroundings: Surroundings, *, engine: bool, rarer: float, batches: bool = False
) -> tuple[list[tuple[str, Hurt]], str]:
    """Return the kinds to draw from, and all failpoints, each this many times rarer than alone."""
    kinds = kinds_on(surroundings, batches=batches)
    around = [
        (kind.name, kind.hurt)
        for kind in kinds
        if kind.hurt and not (engine and kind.hurt in BROKEN_LINES)
    ]
    inside = [
        Failpoint(f.point, f.action, f.argument, f.chance / rarer)
        for kind in kinds
        for f in read(kind.failpoints)
    ]
    return around, "; ".join(f.written for f in inside)
