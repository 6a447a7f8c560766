"""What carries out tasks here, Celery or ``tasks-app work``, and how to start more of it."""

from __future__ import annotations

from enum import StrEnum


class RunBy(StrEnum):
    """Whose children live, or did last; advice names no other."""

    CELERY = "celery"
    WORK = "work"
    EITHER = "either"
    """Both, or nobody was heard of yet."""

    @property
    def scanner(self) -> str:
        """What looks for due tasks, to be started."""
        return self._of("beat (celery -A tasks_app beat) and a worker", "tasks-app work", ", or ")

    @property
    def start_scan(self) -> str:
        return f"Start {self.scanner}, and read its log."

    def start_worker(self, queue: str = "") -> str:
        """Say how, for this queue or for those of the handlers."""
        celery = f"celery -A tasks_app worker -E{queue and f' -Q {queue}'}"
        work = f"tasks-app work{queue and f' -q {queue}'}"
        return f"Start one: {self._of(celery, work, ', or without a broker: ')}"

    def _of(self, celery: str, work: str, between: str) -> str:
        return {self.CELERY: celery, self.WORK: work}.get(self, f"{celery}{between}{work}")
