"""Batch jobs as code declares them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from tasks_app.batch.handlers import declare
from tasks_app.batch.step import LONGEST_NAME, Step, StepHandlers
from tasks_app.batch.tuning import RUN_TUNING, RunTuning
from tasks_app.domain.errors import InvalidJobError, InvalidTaskError
from tasks_app.domain.tasks.names import check_name
from tasks_app.runtime.handlers.registry import HANDLERS, Registry

JOBS: dict[str, BatchJob] = {}
"""What this process declares, by name."""


class BatchJob:
    """Steps in an order, and the parameters that tell one instance from another.

    Declaring it enters handlers for each step: ``payroll:extract`` runs partitions, and
    ``payroll:extract:plan``, ``:join``, ``:reduce`` and ``:compensate`` what is around them. So
    limits, breakers, pauses and Flower know steps by name, and a worker that does not know the job
    claims none of its tasks.

    >>> def pay(ctx, rows):
    ...     for row in rows:
    ...         create_task(ctx.session, send_mail, {"to": row.address})
    >>> salaries = BatchJob("salaries", [Step("pay", Table("employee"), chunk=pay)])
    >>> start_job(session, salaries, {"month": "2030-01"}).new
    True

    Args:
        name: keep it, or instances are not found again.
        steps: each after the one before it, unless it says ``after``.
        params: the pydantic model of the parameters; None: a dict, unchecked.
        identified_by: which of the parameters make two instances the same; default: all.
        registry: for tests.
        tuning: for tests: how its runs wait and look around.

    Raises:
        InvalidJobError: it cannot work.
    """

    def __init__(
        self,
        name: str,
        steps: Sequence[Step],
        *,
        params: type[BaseModel] | None = None,
        identified_by: Sequence[str] | None = None,
        registry: Registry = HANDLERS,
        tuning: RunTuning = RUN_TUNING,
    ) -> None:
        self.name: str = _checked_name(name)
        self.steps: dict[str, Step] = {step.name: step for step in steps}
        if not steps or len(self.steps) != len(steps):
            raise InvalidJobError(f"Job {name} has no steps, or two of one name. Name each once.")
        self.params = params
        self.tuning = tuning
        self.identified_by: tuple[str, ...] | None = (
            None if identified_by is None else tuple(identified_by)
        )
        self.after: dict[str, tuple[str, ...]] = _order(name, steps)
        self._check_again(registry)
        self.handlers: dict[str, StepHandlers] = {
            step.name: declare(self, step, registry) for step in steps
        }
        if registry is HANDLERS:
            JOBS[name] = self

    def _check_again(self, registry: Registry) -> None:
        known = JOBS.get(self.name) if registry is HANDLERS else None
        if known is not None and known.where != self.where:
            raise InvalidJobError(
                f"Job {self.name} is declared with {known.where} already. "
                f"Give the one with {self.where} another name."
            )

    @property
    def where(self) -> str:
        """The function of its first step, which tells it from another of its name."""
        chunk: Any = next(iter(self.steps.values())).chunk
        return f"{chunk.__module__}.{chunk.__qualname__}"

    def given(self, params: dict[str, Any]) -> Any:
        """Return stored parameters as handlers see them."""
        if self.params is None:
            return params
        return self.params.model_validate_json(json.dumps(params))  # as JSON: it may be strict

    def __repr__(self) -> str:
        return f"<job {self.name}>"


def known_job(name: str) -> BatchJob:
    """Return a job that this process declares.

    Raises:
        InvalidJobError: it declares none of that name.
    """
    job = JOBS.get(name)
    if job is None:
        known = ", ".join(sorted(JOBS)) or "none"
        raise InvalidJobError(
            f"There is no job {name} here (known: {known}). "
            "Name the module that declares it in TASKS_APP_IMPORTS."
        )
    return job


def _checked_name(name: Any) -> str:
    try:
        checked = check_name(name)
    except InvalidTaskError as error:
        raise InvalidJobError(f"Job {name!r} is declared wrongly: {error}") from None
    if len(checked) > LONGEST_NAME or ":" in checked:
        raise InvalidJobError(
            f"Job {name!r} has no good name. Use up to {LONGEST_NAME} characters, no colon."
        )
    return checked


def _order(job: str, steps: Sequence[Step]) -> dict[str, tuple[str, ...]]:
    """Return what each step waits for.

    Raises:
        InvalidJobError: a step waits for one that is not there, or for itself in the end.
    """
    names = [step.name for step in steps]
    after: dict[str, tuple[str, ...]] = {}
    for place, step in enumerate(steps):
        before = tuple(names[max(0, place - 1) : place]) if step.after is None else step.after
        unknown = [name for name in before if name not in names]
        if unknown:
            raise InvalidJobError(
                f"Step {step.name} of job {job} is after {', '.join(unknown)}, which is no step. "
                f"Name some of: {', '.join(names)}."
            )
        after[step.name] = before
    done: set[str] = set()
    while rest := [name for name in names if name not in done]:
        free = [name for name in rest if done.issuperset(after[name])]
        if not free:
            raise InvalidJobError(
                f"Steps {', '.join(rest)} of job {job} wait for each other. Take one `after` away."
            )
        done.update(free)
    return after
