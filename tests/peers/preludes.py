"""What the snippets of the guides' tables find when they run."""

from __future__ import annotations

OURS = """
from datetime import UTC, datetime, timedelta
from tasks_app import *
from tasks_app.testing import *
from tasks_app import acreate_task, requeue_task

noon = datetime.now(UTC) + timedelta(days=1)
task_id = create_task(session, "receipt.send", {"order_id": 1})
error_id = create_task(session, "receipt.send", {"order_id": 2}, enabled=False)
drain(session)
ctx = make_context()
DECORATED = "def of_the_table(ctx, payload: dict): ..."

def tell(notice):
    pass
"""

RQ = '''
import os, sys, types
from datetime import UTC, datetime, timedelta
from redis import Redis
from rq import *
from rq import cron
from rq.command import send_stop_job_command
from rq.registry import FailedJobRegistry

jobs = types.ModuleType("shop_jobs")
exec("def send_receipt(order_id): pass\\ndef grant_points(order_id): pass\\n"
     "def daily(): pass\\ndef fails(): raise ValueError\\n"
     "def tell(job, connection, type, value, traceback): pass", jobs.__dict__)
sys.modules["shop_jobs"] = jobs
from shop_jobs import *
redis = Redis.from_url(os.environ["REDIS"])
redis.flushdb()


class Strict(Queue):
    """Options that it does not know would be arguments of the function."""

    def enqueue_call(self, func, args=None, kwargs=None, **options):
        assert not kwargs, kwargs
        return super().enqueue_call(func, args, kwargs, **options)


queue = Strict(connection=redis)
noon = datetime.now(UTC) + timedelta(days=1)
job = queue.enqueue(send_receipt, 7)
failed = queue.enqueue(jobs.fails).id
SimpleWorker([queue], connection=redis).work(burst=True, logging_level="ERROR")
job = queue.enqueue(send_receipt, 7)
from rq.exceptions import InvalidJobOperation
original = send_stop_job_command
running = job.id
def send_stop_job_command(connection, job_id):  # nothing runs here, and RQ says so
    try:
        original(connection, job_id)
    except InvalidJobOperation:
        pass
'''

PROCRASTINATE = """
import os
from datetime import UTC, datetime, timedelta
import psycopg
from procrastinate import *
from procrastinate import testing

with psycopg.connect(os.environ["PGDSN"], autocommit=True) as aside:
    aside.execute("DROP SCHEMA IF EXISTS guide_peer CASCADE; CREATE SCHEMA guide_peer")
dsn = psycopg.conninfo.make_conninfo(os.environ["PGDSN"], options="-c search_path=guide_peer")
app = App(connector=SyncPsycopgConnector(conninfo=dsn))
app.open()
app.schema_manager.apply_schema()
connection = psycopg.connect(dsn)
noon = datetime.now(UTC) + timedelta(days=1)

@app.task(name="receipt.send")
def send_receipt(order_id):
    pass

job_id = send_receipt.defer(order_id=7)
DECORATED = "def of_the_table(*arguments): ..."
"""

THEIRS = {"rq": RQ, "procrastinate": PROCRASTINATE}
PROGRAMS = {"rq": "rq", "procrastinate": "procrastinate"}
