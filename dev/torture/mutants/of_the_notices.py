"""Wake-ups by NOTIFY; each without one rule."""

from __future__ import annotations

from dev.torture.mutants.change import mutant

LISTENER = "tests/runtime/notify/test_listener.py::"
STANDALONE = "tests/runtime/worker/test_standalone.py::"
TRIGGER = "tests/pool/operations/test_grants.py::"

NOTICES = (
    mutant(
        "notices: before the first one",
        "Who begins to listen looks once for what he has not heard.",
        "tasks_app/runtime/notify.py",
        "        self._wake(set())  # what came before this was not heard\n",
        "",
        f"{LISTENER}TestListener::test_it_listens_again_when_the_server_has_ended_its_connection",
    ),
    mutant(
        "notices: a nap",
        "A notice ends the nap of an idle worker.",
        "tasks_app/runtime/worker/standalone.py",
        "            self._noticed = True\n            self._inflight.claimer_wake.set()\n",
        "            self._noticed = True\n",
        f"{STANDALONE}test_a_notice_ends_the_nap",
    ),
    mutant(
        "notices: in vain",
        "Those who are woken for a task that another one got rest for a while.",
        "tasks_app/runtime/worker/standalone.py",
        "elif noticed:",
        "elif not noticed:",
        f"{STANDALONE}test_a_child_that_is_woken_in_vain_rests",
    ),
    mutant(
        "notices: an idle session",
        "No idle_session_timeout ends who listens.",
        "tasks_app/pool/dispatch/notifications.py",
        "set_config('idle_session_timeout', '0', false)",
        "0",
        f"{LISTENER}TestListener::test_it_is_idle_for_longer_than_sessions_may_be",
    ),
    mutant(
        "notices: of the trigger",
        "The trigger wakes nobody for what cannot run now.",
        "migrations/baseline/pools.sql",
        " AND n.scan_at <= statement_timestamp()",
        "",
        f"{TRIGGER}test_nothing_is_told_of_rollbacks_and_what_cannot_run",
    ),
)
