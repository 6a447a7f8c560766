"""The design without one of its rules about scan, ledger and broker."""

from __future__ import annotations

from dataclasses import replace

from verification.dispatch_world import DispatchSetup
from verification.trial import Mutant, dispatching_without

ONE_SCANNER = DispatchSetup(("commits late", "plain"), faults={"child crash": 1})
NO_WAITING = DispatchSetup(
    ("raises once", "long"), children=2, ledger_room=2, ledger_clock_runs=False
)
ONE_ROOM = DispatchSetup(("plain", "plain"), ids_per_message=1)
CUT_OFF = DispatchSetup(
    ("plain", "plain"), scanners=2, faults={"cut off": 1}, ledger_clock_runs=False
)

DISPATCHES = (
    Mutant(
        "a permanent published mark",
        "P2",
        dispatching_without(ONE_SCANNER, "no_published_mark"),
        "P2: stuck",
        ("writes a ledger row for T1", "is killed", "reaps", "T0 is done"),
        quick=True,
    ),
    Mutant(
        "a watermark instead of full passes",
        "P2",
        dispatching_without(ONE_SCANNER, "every_pass_is_full"),
        "P2: stuck",
        ("writes a ledger row for T1", "T1 is done", "the producer of T0 commits"),
        quick=True,
    ),
    Mutant(
        "ledger rows never expire",
        "P2",
        dispatching_without(ONE_SCANNER, "overdue_messages_are_published_again"),
        "P2: stuck",
        ("publishes T", "the broker loses"),
        quick=True,
    ),
    Mutant(
        "finished messages stay in the ledger",
        "P2",
        dispatching_without(ONE_ROOM, "finished_messages_leave_the_ledger"),
        "P2: stuck",
        ("has finished", "publishes T0 again"),
    ),
    Mutant(
        "the ledger hides what was rescheduled after it",
        "H11",
        dispatching_without(NO_WAITING, "ledger_hides_only_what_it_saw"),
        "P2: stuck",
        ("T0 raises", "claims T1"),
        quick=True,
    ),
    Mutant(
        "a publish in doubt takes its ledger row back",
        "H12",
        dispatching_without(
            replace(ONE_ROOM, faults={"publish in doubt": 1}),
            "doubtful_messages_keep_their_rows",
        ),
        "H12: the broker holds 2 messages",
        ("gets no answer (it arrived)", "publishes T0"),
        quick=True,
    ),
    Mutant(
        "the reaper leaves the dead one's message in the ledger",
        "P3",
        dispatching_without(
            replace(ONE_ROOM, faults={"child crash": 1}, ledger_clock_runs=False),
            "reaper_clears_the_ledger",
        ),
        "P2: stuck",
        ("is killed", "reaps"),
    ),
    Mutant(
        "what is given back stays hidden",
        "P2",
        dispatching_without(
            replace(NO_WAITING, kinds=("long", "plain")), "giving_back_clears_the_ledger"
        ),
        "P2: stuck",
        ("claims T0", "gives back"),
    ),
    Mutant(
        "a scanner that cannot publish keeps the ledger's room",
        "H13",
        dispatching_without(CUT_OFF, "unpublished_rows_are_taken_back"),
        "P2: stuck",
        ("cut off", "cannot publish"),
        quick=True,
    ),
    Mutant(
        "a leader that cannot publish keeps the lead",
        "H13",
        dispatching_without(CUT_OFF, "leader_that_cannot_publish_resigns"),
        "P2: stuck",
        ("takes the lead", "cut off"),
    ),
    Mutant(
        "overdue messages are published though no worker lives",
        "H12",
        dispatching_without(
            replace(ONE_ROOM, faults={"workers leave": 1}), "nothing_without_a_live_worker"
        ),
        "H12: the broker holds 2 messages",
        ("all workers vanish", "again, under the same id"),
    ),
    Mutant(
        "the ledger has no bound",
        "H12",
        dispatching_without(ONE_ROOM, "ledger_is_bounded"),
        "H12: the broker holds 2 messages",
        ("publishes T0", "publishes T1"),
    ),
    Mutant(
        "unknown handlers are not parked",
        "P2",
        dispatching_without(
            DispatchSetup(("unknown", "plain"), ids_per_message=1), "what_cannot_run_is_parked"
        ),
        "P2: stuck",
        ("does not know T0",),
    ),
    Mutant(
        "scan_at before due_at",
        "H14",
        dispatching_without(
            DispatchSetup(("early", "plain"), ids_per_message=1),
            "scan_at_is_never_before_due_at",
        ),
        "P2: stuck",
        ("drops T0, which is not due",),
    ),
    Mutant(
        "a claim without compare-and-set",
        "P2",
        dispatching_without(replace(ONE_ROOM, faults={"duplicate": 1}), "claims_compare_and_set"),
        "P2: T0 was done and is running",
        ("repeats", "is done", "claims T0"),
    ),
    Mutant(
        "whole passes go on at the bookmark",
        "P2",
        dispatching_without(
            replace(ONE_SCANNER, ids_per_message=1, passes_in_between=True), "every_pass_is_full"
        ),
        "P2: stuck",
        ("T1 is done", "the producer of T0 commits"),
        quick=True,
    ),
    Mutant(
        "whole passes rest for ever",
        "P2",
        dispatching_without(
            replace(ONE_SCANNER, passes_near_the_end=True), "whole_passes_come_again"
        ),
        "P2: stuck",
        ("T1 is done", "the producer of T0 commits"),
        quick=True,
    ),
    Mutant(
        "rows wait for their hints for ever",
        "P2",
        dispatching_without(
            DispatchSetup(("hinted",), faults={"hint": 1}), "rows_wait_for_hints_a_moment"
        ),
        "P2: stuck",
        (),
        quick=True,
    ),
    Mutant(
        "a deaf worker is left alone",
        "P2",
        dispatching_without(
            replace(ONE_ROOM, faults={"workers go deaf": 1}), "deaf_consumers_are_restarted"
        ),
        "P2: stuck",
        ("hear nothing",),
        quick=True,
    ),
)
