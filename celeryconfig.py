"""Celery's own settings, for `celery -A tasks_app worker | beat | flower` started in this folder.

Every setting of Celery may stand here; it wins over the defaults of tasks_app, of which
docs/operations/configuration.md says which ones to leave alone. Tables (`beat_schedule`,
`broker_transport_options`) are merged with ours, entry by entry.
"""

from __future__ import annotations

# Children of one worker, each a process that runs one task at a time. A child keeps two or three
# connections to the database open: children x 3 must fit into PostgreSQL's max_connections.
worker_concurrency = 2

# A name at the front that log collectors can split at. Handlers log through `ctx.log`, whose
# records carry task_id, task_name and attempt as extra fields.
worker_log_format = "%(asctime)s %(levelname)s %(processName)s %(name)s: %(message)s"
worker_task_log_format = worker_log_format
