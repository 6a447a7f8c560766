"""The real configurations: which tasks, which workers, which faults. Every one must hold.

Faults are rationed, mostly one or two of a kind: a promise that two coincidences break shows
itself with two, and the number of states stays within a few minutes of one core.
"""

from __future__ import annotations

from dataclasses import dataclass

from verification.dispatch_world import DispatchSetup
from verification.rows import MAX_ATTEMPTS, MAX_CRASHES, Kind
from verification.world import RunSetup

WRITES = Kind("writes through ctx.session")
WRITES_OR_RAISES = Kind("writes through ctx.session, or raises", may_fail=True)
MAILS = Kind("has effects outside", in_session=False)
MAILS_OR_RAISES = Kind("has effects outside, or raises", in_session=False, may_fail=True)
ASYNC = Kind("async, effects outside", in_session=False, concurrent=True)
ASYNC_KILLER = Kind("async, kills its process", in_session=False, concurrent=True, kills="child")
BATCH = Kind("commit=batch", batch=True)
BATCH_OR_RAISES = Kind("commit=batch, or raises", batch=True, may_fail=True)
ONCE = Kind("at_most_once, effects outside", in_session=False, at_most_once=True)
ONCE_WRITES = Kind("at_most_once, writes through ctx.session", at_most_once=True)
KILLER = Kind("kills its process", kills="child")
KILLER_AT_FETCH = Kind("kills its process before it starts", kills="child at fetch")
KILLER_OF_WORKERS = Kind("kills its whole worker", kills="worker")
HANGS = Kind("never returns", hangs=True)
DISABLED = Kind("disabled", enabled=False)
EXPIRES = Kind("may expire", expires=True)
LATER = Kind("not due yet", not_due_yet=True)

ONE_CHILD_EACH = (0, 1)
"""Two workers with one child each; the default is one worker with two children."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A named setup that must hold."""

    name: str
    setup: RunSetup | DispatchSetup
    quick: bool = False


RUNS = (
    Configuration(
        "writes, child crash, late claim",
        RunSetup(
            (WRITES, WRITES),
            faults={"child crash": 1, "claim comes late": 1},
            charges_are_deaths=True,
        ),
    ),
    Configuration(
        "writes, child crash, lost settle reply",
        RunSetup(
            (WRITES, WRITES),
            faults={"child crash": 1, "settle reply lost": 1},
            charges_are_deaths=True,
        ),
        quick=True,
    ),
    Configuration(
        "writes, lapsed lease, lost settle reply",
        RunSetup((WRITES, WRITES), faults={"lease lapses": 1, "settle reply lost": 1}),
        quick=True,
    ),
    Configuration(
        "one raises, worker crash, lapsed lease",
        RunSetup(
            (WRITES, WRITES_OR_RAISES),
            ONE_CHILD_EACH,
            faults={"worker crash": 1, "lease lapses": 1},
        ),
        quick=True,
    ),
    Configuration(
        "one raises, orphans, lapsed lease",
        RunSetup(
            (WRITES, WRITES_OR_RAISES),
            ONE_CHILD_EACH,
            faults={"parent death": 1, "lease lapses": 1},
        ),
    ),
    Configuration(
        "collected outcomes, child crash, lost flush reply",
        RunSetup(
            (MAILS, WRITES),
            faults={"child crash": 1, "settle reply lost": 1},
            charges_are_deaths=True,
        ),
    ),
    Configuration(
        "collected outcomes, one raises, lapsed lease",
        RunSetup((MAILS_OR_RAISES, MAILS), faults={"lease lapses": 1}),
    ),
    Configuration(
        "two buriers, one of whom dies or is not answered",
        RunSetup(
            (WRITES, MAILS),
            faults={"child crash": 2, "burial reply lost": 1},
            charges_are_deaths=True,
            dead_leave_no_statements=True,
        ),
    ),
    Configuration(
        "two buriers and a late claim of the dead",
        RunSetup(
            (WRITES,),
            faults={"child crash": 1, "claim comes late": 1, "burial reply lost": 1},
            charges_are_deaths=True,
        ),
        quick=True,
    ),
    Configuration(
        "a killer and its neighbour",
        RunSetup((KILLER, WRITES), innocent=(1,), most_runs=MAX_ATTEMPTS),
        quick=True,
    ),
    Configuration(
        "a killer and a collected neighbour",
        RunSetup((MAILS, KILLER), innocent=(0,), most_runs=MAX_ATTEMPTS),
        quick=True,
    ),
    Configuration(
        "a killer between two neighbours",
        RunSetup(
            (MAILS, KILLER, WRITES),
            innocent=(0, 2),
            most_runs=MAX_ATTEMPTS,
            dead_leave_no_statements=True,
        ),
    ),
    Configuration(
        "a killer, a neighbour, and a person's open transaction",
        RunSetup((MAILS, KILLER), faults={"row held": 1}, innocent=(0,), most_runs=MAX_ATTEMPTS),
        quick=True,
    ),
    Configuration(
        "a killer, worker crash, lapsed lease, lost settle reply",
        RunSetup(
            (KILLER, WRITES),
            ONE_CHILD_EACH,
            faults={"worker crash": 1, "lease lapses": 1, "settle reply lost": 1},
            most_runs=MAX_ATTEMPTS + 2,
        ),
    ),
    Configuration(
        "a killer at fetch and its neighbour",
        RunSetup(
            (KILLER_AT_FETCH, WRITES), innocent=(1,), innocent_crashes=1, most_runs=MAX_CRASHES
        ),
        quick=True,
    ),
    Configuration(
        "a killer of workers and its neighbour",
        RunSetup(
            (KILLER_OF_WORKERS, WRITES),
            ONE_CHILD_EACH,
            innocent=(1,),
            innocent_crashes=1,
            most_runs=MAX_CRASHES,
        ),
        quick=True,
    ),
    Configuration(
        "async handlers, one kills",
        RunSetup(
            (ASYNC_KILLER, ASYNC),
            innocent=(1,),
            innocent_crashes=1,
            most_runs=MAX_ATTEMPTS + 1,
        ),
        quick=True,
    ),
    Configuration(
        "async handlers, child crash, lost flush reply",
        RunSetup((ASYNC, ASYNC), faults={"child crash": 1, "settle reply lost": 1}),
    ),
    Configuration(
        "a handler that hangs",
        RunSetup((HANGS, MAILS), innocent=(1,)),
        quick=True,
    ),
    Configuration(
        "one child alone, and a claim that is never answered",
        RunSetup(
            (MAILS, WRITES),
            workers=(0,),
            faults={"claim reply never comes": 1, "claim reply lost": 1, "child crash": 1},
        ),
        quick=True,
    ),
    Configuration(
        "at_most_once, child crash, lost claim reply",
        RunSetup((ONCE, WRITES), faults={"child crash": 1, "claim reply lost": 1}),
    ),
    Configuration(
        "at_most_once, child crash, lost settle reply",
        RunSetup((ONCE, MAILS), faults={"child crash": 1, "settle reply lost": 1}),
        quick=True,
    ),
    Configuration(
        "at_most_once in ctx.session, child crash, lost settle reply",
        RunSetup((ONCE_WRITES, WRITES), faults={"child crash": 1, "settle reply lost": 1}),
        quick=True,
    ),
    Configuration(
        "at_most_once, requeue, worker crash, lapsed lease",
        RunSetup(
            (ONCE, MAILS),
            ONE_CHILD_EACH,
            faults={"worker crash": 1, "requeue": 1, "lease lapses": 1},
        ),
    ),
    Configuration(
        "cancel and requeue",
        RunSetup((WRITES, WRITES_OR_RAISES), faults={"cancel": 1, "requeue": 1}),
        quick=True,
    ),
    Configuration(
        "cancel and child crash",
        RunSetup((WRITES, WRITES_OR_RAISES), faults={"cancel": 1, "child crash": 1}),
    ),
    Configuration(
        "cancel, requeue, lost replies, lapsed lease",
        RunSetup(
            (MAILS, WRITES),
            faults={"cancel": 1, "requeue": 1, "settle reply lost": 1, "lease lapses": 1},
        ),
    ),
    Configuration(
        "commit=batch, lapsed lease, cancel, lost commit reply",
        RunSetup(
            (BATCH, BATCH),
            faults={"lease lapses": 1, "cancel": 1, "settle reply lost": 1},
        ),
        quick=True,
    ),
    Configuration(
        "commit=batch, child crash",
        RunSetup(
            (BATCH, BATCH, WRITES),
            faults={"child crash": 1},
            charges_are_deaths=True,
            dead_leave_no_statements=True,
        ),
    ),
    Configuration(
        "only lost replies: nobody is charged",
        RunSetup(
            (MAILS, WRITES),
            faults={"settle reply lost": 2},
            innocent=(0, 1),
            leases_never_lapse=True,
        ),
        quick=True,
    ),
    Configuration(
        "a child crash, nothing under way: nobody is left to the lease",
        RunSetup(
            (MAILS, WRITES, MAILS),
            faults={"child crash": 1},
            charges_are_deaths=True,
            dead_leave_no_statements=True,
        ),
    ),
    Configuration(
        "disabled, expiring and early tasks",
        RunSetup((DISABLED, EXPIRES, LATER), faults={"lease lapses": 1}),
        quick=True,
    ),
    Configuration(
        "a failover that forgets the last commit",
        RunSetup(
            (MAILS,),
            ONE_CHILD_EACH,
            faults={"failover": 1, "lease lapses": 1},
            counts_attempts=True,
        ),
        quick=True,
    ),
)

DISPATCHES = (
    Configuration(
        "two scanners, one dies; a late commit",
        DispatchSetup(
            ("commits late", "raises once"),
            scanners=2,
            ledger_room=2,
            ids_per_message=1,
            faults={"scanner crash": 1, "leadership lapses": 1},
        ),
        quick=True,
    ),
    Configuration(
        "repeated messages, child crash",
        DispatchSetup(
            ("raises once", "plain"),
            children=2,
            ledger_room=2,
            faults={"duplicate": 1, "child crash": 1},
        ),
        quick=True,
    ),
    Configuration(
        "an impatient ledger, a hint, child crash",
        DispatchSetup(
            ("raises once", "plain"),
            children=2,
            faults={"child crash": 1, "hint": 1, "impatience": 1},
        ),
    ),
    Configuration(
        "two impatient copies, two children",
        DispatchSetup(
            ("raises once", "plain"),
            children=2,
            ledger_room=2,
            ids_per_message=1,
            faults={"impatience": 2},
        ),
    ),
    Configuration(
        "publishes without an answer",
        DispatchSetup(
            ("commits late", "raises once"),
            scanners=2,
            faults={"publish in doubt": 2},
        ),
        quick=True,
    ),
    Configuration(
        "the broker dies empty; hint and repetition",
        DispatchSetup(
            ("commits late", "raises once"),
            children=2,
            ledger_room=2,
            faults={"hint": 1, "duplicate": 1, "broker down": 1},
        ),
    ),
    Configuration(
        "a weekend without workers",
        DispatchSetup(
            ("plain", "plain", "plain"),
            children=2,
            ids_per_message=1,
            ledger_room=2,
            faults={"workers leave": 1, "scanner crash": 1},
        ),
        quick=True,
    ),
    Configuration(
        "workers leave, the broker dies, messages repeat",
        DispatchSetup(
            ("commits late", "raises once"),
            scanners=2,
            children=2,
            faults={"workers leave": 1, "broker down": 1, "duplicate": 1},
        ),
    ),
    Configuration(
        "unknown and early tasks at the head",
        DispatchSetup(("unknown", "early", "plain"), ids_per_message=1, faults={"child crash": 1}),
        quick=True,
    ),
    Configuration(
        "no waiting: a long task, retries, child crash",
        DispatchSetup(
            ("raises once", "long", "plain"),
            children=2,
            ledger_room=2,
            ids_per_message=3,
            faults={"child crash": 1, "hint": 1},
            ledger_clock_runs=False,
        ),
        quick=True,
    ),
    Configuration(
        "no waiting: a scanner is cut off from the broker",
        DispatchSetup(
            ("plain", "raises once"),
            scanners=2,
            faults={"cut off": 1, "leadership lapses": 1},
            ledger_clock_runs=False,
        ),
        quick=True,
    ),
)

ALL = (*RUNS, *DISPATCHES)
