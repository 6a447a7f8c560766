"""Celery's own settings, for `celery -A tasks_app worker | beat | flower` started in this folder.

Every setting of Celery may stand here; it wins over the defaults of tasks_app, of which
docs/operations.md says which ones to leave alone. Two of them are tables that are replaced as a
whole: `beat_schedule` and `broker_transport_options`.
"""

from __future__ import annotations

# Children of one worker, each a process that runs one task at a time. A child keeps two or three
# connections to the database open: children x 3 must fit into PostgreSQL's max_connections.
worker_concurrency = 2

# A child that imports much needs longer than Celery's 4 s before it says that it is up; one that
# says nothing in time is killed and started again, for ever.
worker_proc_alive_timeout = 15

# Celery's own limit is 100 tries, after which the worker ends. A broker that is away for an hour is
# no reason to start workers by hand.
broker_connection_max_retries = None

# A name at the front that log collectors can split at. Handlers log through `ctx.log`, whose
# records carry task_id, task_name and attempt as extra fields.
worker_log_format = "%(asctime)s %(levelname)s %(processName)s %(name)s: %(message)s"
worker_task_log_format = worker_log_format
