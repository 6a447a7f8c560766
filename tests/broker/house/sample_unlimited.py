"""The tasks of the sample without time limits, for pools that can enforce none."""

from __future__ import annotations

from sample_celery import app

from tasks_app.celery_tasks import run_from_pool

run_from_pool(
    *(
        task
        for name, task in app.tasks.items()
        if name.startswith("sample_celery.") and not (task.soft_time_limit or task.time_limit)
    )
)
