"""What must hold of claims, runs, deaths and operators: tasks, workers, faults."""

from __future__ import annotations

from dev.verification.kinds import (
    ASYNC,
    ASYNC_KILLER,
    DISABLED,
    EXPIRES,
    HANGS,
    KILLER,
    KILLER_AT_FETCH,
    KILLER_OF_CONNECTIONS,
    KILLER_OF_WORKERS,
    LATER,
    MAILS,
    MAILS_OR_RAISES,
    ONCE,
    ONCE_WRITES,
    ONE_CHILD_EACH,
    WRITES,
    WRITES_OR_RAISES,
)
from dev.verification.rows import MAX_ATTEMPTS, MAX_CRASHES
from dev.verification.trial import Configuration
from dev.verification.world import RunSetup

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
        "two reapers, one of whom dies or is not answered",
        RunSetup(
            (WRITES, MAILS),
            faults={"child crash": 2, "reaping reply lost": 1},
            charges_are_deaths=True,
            dead_leave_no_statements=True,
        ),
    ),
    Configuration(
        "two reapers and a late claim of the dead",
        RunSetup(
            (WRITES,),
            faults={"child crash": 1, "claim comes late": 1, "reaping reply lost": 1},
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
        "give-backs, lost replies, and a person's open transaction",
        RunSetup(
            (MAILS, WRITES),
            faults={"row held": 2, "settle reply lost": 1},
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
        "a database outage: nobody is charged",
        RunSetup(
            (MAILS, WRITES, WRITES),
            faults={"outage": 1},
            innocent=(0, 1, 2),
        ),
        quick=True,
    ),
    Configuration(
        "a database outage and a child crash",
        RunSetup(
            (MAILS, WRITES_OR_RAISES),
            ONE_CHILD_EACH,
            faults={"outage": 1, "child crash": 1},
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
    Configuration(
        "a failover that forgets the last three commits",
        RunSetup(
            (WRITES,),
            ONE_CHILD_EACH,
            faults={"failover": 1, "lease lapses": 1},
            counts_attempts=True,
            failover_forgets=3,
        ),
        quick=True,
    ),
    Configuration(
        "asked to stop: nobody is charged",
        RunSetup(
            (MAILS, WRITES),
            faults={"sigterm": 2, "settle reply lost": 1},
            innocent=(0, 1),
            leases_never_lapse=True,
        ),
        quick=True,
    ),
    Configuration(
        "asked to stop, at_most_once, child crash",
        RunSetup((ONCE, MAILS), faults={"sigterm": 1, "child crash": 1}),
    ),
    Configuration(
        "a task that ends its own connection, and its neighbour",
        RunSetup((KILLER_OF_CONNECTIONS, MAILS), innocent=(1,), most_runs=MAX_CRASHES),
        quick=True,
    ),
    Configuration(
        "all connections are lost: nobody is suspected",
        RunSetup(
            (WRITES, WRITES_OR_RAISES),
            faults={"connections lost": 2},
            innocent=(0,),
            leases_never_lapse=True,
        ),
        quick=True,
    ),
)
