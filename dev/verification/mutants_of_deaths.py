"""The design without one of its rules about crashes, reapings, slots and rescue."""

from __future__ import annotations

from dataclasses import replace

from dev.verification.kinds import (
    ASYNC,
    ASYNC_KILLER,
    HANGS,
    KILLER,
    KILLER_AT_FETCH,
    KILLER_OF_WORKERS,
    MAILS,
    ONCE,
    ONE_CHILD_EACH,
    WRITES,
    WRITES_OR_RAISES,
)
from dev.verification.rows import MAX_ATTEMPTS, MAX_CRASHES
from dev.verification.trial import Mutant, without
from dev.verification.world import RunSetup

LAPSE = RunSetup((WRITES, WRITES_OR_RAISES), ONE_CHILD_EACH, faults={"lease lapses": 1})
CHARGED_ONCE = RunSetup(
    (WRITES, MAILS),
    faults={"child crash": 1},
    charges_are_deaths=True,
    dead_leave_no_statements=True,
)
NEIGHBOUR = RunSetup((MAILS, KILLER), innocent=(0,), most_runs=MAX_ATTEMPTS)
HELD_ROW = replace(NEIGHBOUR, faults={"row held": 1})
FETCH = RunSetup((KILLER_AT_FETCH, WRITES), most_runs=MAX_CRASHES)
MACHINES = RunSetup(
    (KILLER_OF_WORKERS, WRITES),
    ONE_CHILD_EACH,
    innocent=(1,),
    innocent_crashes=1,
    most_runs=MAX_CRASHES,
)
ONCE_LOST = RunSetup((ONCE, MAILS), faults={"child crash": 1, "settle reply lost": 1})

DEATHS = (
    Mutant(
        "no rescuer",
        "P2",
        without(
            replace(LAPSE, faults={"worker crash": 1}),
            "expired_leases_are_rescued",
        ),
        "P2: stuck",
        ("claims T", "vanishes whole"),
        quick=True,
    ),
    Mutant(
        "rescue in two steps",
        "P6",
        without(LAPSE, "rescue_rechecks_the_lease"),
        "P6: rescue of T",
        ("the rescuer reads T", "by its id"),
    ),
    Mutant(
        "rescuers do not wait after an outage",
        "P3",
        without(
            RunSetup((WRITES,), faults={"outage": 1}, innocent=(0,)),
            "rescuers_wait_after_an_outage",
        ),
        "P3: 1 crashes were counted on an innocent neighbour (T0)",
        ("claims T0", "the database was away", "T0 is rescued"),
    ),
    Mutant(
        "the reaper charges the neighbours",
        "P3",
        without(NEIGHBOUR, "reaper_charges_only_the_running"),
        "P3: an innocent neighbour was charged a failure (T0)",
        ("T1 kills c0", "releases the other rows"),
    ),
    Mutant(
        "the reaper leaves the neighbours to the lease",
        "P3",
        without(NEIGHBOUR, "reaper_releases_the_others"),
        "P3: 1 crashes were counted on an innocent neighbour (T0)",
        ("T1 kills c0", "releases the other", "the lease of T0 lapses", "T0 is rescued"),
    ),
    Mutant(
        "the slot still names what is over and collected",
        "P3",
        without(NEIGHBOUR, "running_id_is_cleared_when_collected"),
        "P3: an innocent neighbour was charged a failure (T0)",
        ("T0 is over in c0", "T1 kills c0", "charges what owner"),
    ),
    Mutant(
        "two reapers, and no fence at the charge",
        "P3",
        without(CHARGED_ONCE, "reaper_charges_under_the_fence"),
        "P3: 2 failures were charged for 1 deaths",
        ("is killed", "reads the slot", "charges what", "claims T", "charges what"),
        quick=True,
    ),
    Mutant(
        "the slot holds the running id, not its token",
        "P3",
        without(
            RunSetup(
                (WRITES,),
                faults={"child crash": 1, "claim comes late": 1},
                charges_are_deaths=True,
                dead_leave_no_statements=True,
            ),
            "slot_knows_the_running_token",
        ),
        "P3: 2 failures were charged for 1 deaths",
        ("under way", "claims T0", "is killed", "charges what", "a late claim", "charges what"),
    ),
    Mutant(
        "the reaper charges before it releases",
        "P3",
        without(HELD_ROW, "reaper_releases_before_it_charges"),
        "P3: 1 crashes were counted on an innocent neighbour (T0)",
        ("gets T0 T1", "T1 kills c0", "locks T1", "the lease of T0 lapses", "T0 is rescued"),
    ),
    Mutant(
        "the housekeeper waits for the lock of the one it charges",
        "P3",
        without(HELD_ROW, "reaper_never_blocks_the_housekeeper"),
        "P3: 1 crashes were counted on an innocent neighbour (T0)",
        ("T1 kills", "reads the slot", "locks T1", "the lease of T0 lapses", "T0 is rescued"),
        quick=True,
    ),
    Mutant(
        "a living child is reaped",
        "P3",
        without(replace(CHARGED_ONCE, faults={"hasty reaping": 1}), "only_the_dead_are_reaped"),
        "P3: 1 failures were charged for 0 deaths",
        ("lives, yet", "charges what"),
    ),
    Mutant(
        "the running id is written after decoding",
        "H5",
        without(NEIGHBOUR, "running_id_comes_before_decoding"),
        "P3: 1 crashes were counted on an innocent neighbour (T0)",
        ("T1 kills c0", "ran nothing", "charges what"),
    ),
    Mutant(
        "a death without a running id counts nothing",
        "H5",
        without(FETCH, "no_running_id_counts_a_crash"),
        f"P3: a task that kills was started {MAX_CRASHES + 1} times",
        ("before any running id",) * (MAX_CRASHES + 1),
        quick=True,
    ),
    Mutant(
        "no max_crashes",
        "P3",
        without(MACHINES, "crashes_are_bounded"),
        f"P3: a task that kills was started {MAX_CRASHES + 1} times",
        ("T0 kills the whole worker", "T0 is rescued") * MAX_CRASHES,
    ),
    Mutant(
        "alone only from the second crash on",
        "H7",
        without(MACHINES, "once_crashed_is_claimed_alone"),
        "P3: 2 crashes were counted on an innocent neighbour (T1)",
        ("gets T0 T1", "kills the whole worker", "gets T0 T1", "kills the whole worker"),
    ),
    Mutant(
        "alone in the claim, but not in the child",
        "H7",
        without(
            RunSetup((ASYNC_KILLER, ASYNC), innocent=(1,), innocent_crashes=1),
            "alone_means_alone_in_the_child",
        ),
        "P3: 2 crashes were counted on an innocent neighbour (T1)",
        ("T0 kills c", "charges what", "T0 kills c", "charges what"),
    ),
    Mutant(
        "at_most_once claimed in a group",
        "P5",
        without(
            RunSetup((KILLER_OF_WORKERS, ONCE), ONE_CHILD_EACH, innocent=(1,)),
            "at_most_once_is_claimed_alone",
        ),
        "P3: an innocent neighbour ended in the error pool (T1)",
        ("gets T0 T1", "kills the whole worker", "T1 is rescued"),
    ),
    Mutant(
        "the running id goes before the settle is answered",
        "H4",
        without(ONCE_LOST, "running_id_stays_until_answered"),
        "P5: an at_most_once task was started twice (T0)",
        ("has no answer", "is killed", "ran nothing", "starts T0"),
    ),
    Mutant(
        "no hard limit",
        "P2",
        without(RunSetup((HANGS,)), "parent_kills_past_the_hard_limit"),
        "P2: stuck",
        ("starts T0",),
    ),
)
