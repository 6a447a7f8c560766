"""Run times: how long the runs of each name took lately, as one child learned it.

A child claims as many tasks at a time as it likely carries out in a moment: hundreds of fast ones,
one of the slow ones, so that nothing waits behind a slow task that another child could run.
"""

from __future__ import annotations

from collections.abc import Callable

FAST_S = 0.05
"""A handler whose runs take less is known to be fast; before others, outcomes are written."""
HOLD_S = 0.2
"""How much work one claim may take on: the longest that its last task waits for the others."""
GROWTH = 4
"""A group is at most this many times the one before: a few fast tasks say little about others."""
_WEIGHT = 0.2
"""Of the newest run in the moving average: ten fast runs make up for a slow one."""
FEW = 5
"""A name is known after this many runs: the first ones connect, compile and import."""
MOST_NAMES = 10_000


class RunTimes:
    """Moving averages in seconds. Threads may learn at the same time; a lost run does no harm."""

    def __init__(self, news: Callable[[], object] = lambda: None) -> None:
        """``news`` is called when a name enters the snapshot."""
        self._news = news
        self.fast_s = FAST_S
        self._of_name: dict[str, float] = {}
        self._young: dict[str, int] = {}
        """How often names ran that are not known yet."""
        self._lately_s: float | None = None
        self._group = 1

    def learn(self, name: str, seconds: float) -> None:
        known = self._of_name.get(name)
        if known is None:
            self._meet(name, seconds)
        elif self._young and name in self._young and not known < self.fast_s <= seconds:
            self._grow(name, min(known, seconds))
        else:
            self._of_name[name] = known + _WEIGHT * (seconds - known)
            if self._young:  # slow, but no first run: no need to wait for more
                self._know(name)
        lately = self._lately_s
        self._lately_s = seconds if lately is None else lately + _WEIGHT * (seconds - lately)

    def _meet(self, name: str, seconds: float) -> None:
        if len(self._of_name) >= MOST_NAMES:
            self._of_name.clear()
            self._young.clear()
        self._of_name[name] = seconds
        self._young[name] = 1
        if seconds >= self.fast_s:
            self._news()

    def _grow(self, name: str, shortest_s: float) -> None:
        self._of_name[name] = shortest_s
        runs = self._young.get(name, FEW) + 1
        if runs < FEW:
            self._young[name] = runs
        else:
            self._know(name)

    def _know(self, name: str) -> None:
        if self._young.pop(name, None) is not None:
            self._news()

    def is_fast(self, name: str) -> bool:
        """Whether runs of this name are known to be short."""
        return self._of_name.get(name, self.fast_s) < self.fast_s

    def next_group(self, most: int) -> int:
        """Return how many tasks to claim next: 1 .. ``most``, by all names' runs lately."""
        if self._lately_s is None:
            return 1
        fits = int(HOLD_S / max(self._lately_s, 1e-9))
        self._group = max(1, min(most, fits, self._group * GROWTH))
        return self._group

    def snapshot(self) -> dict[str, float]:
        """Return the seconds of a run, for each name that is known or was slow."""
        young = self._young
        return {
            name: seconds
            for name, seconds in list(self._of_name.items())
            if seconds >= self.fast_s or name not in young
        }
