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

PGQUEUER = '''
import os
from datetime import UTC, datetime, timedelta
from functools import partial
import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.errors import RetryRequested
from pgqueuer.executors import DatabaseRetryEntrypointExecutor
from pgqueuer.models import Context
from pgqueuer.queries import Queries

aside = await asyncpg.connect(os.environ["PGDSN"])
await aside.execute("DROP SCHEMA IF EXISTS guide_peer CASCADE; CREATE SCHEMA guide_peer")
connection = await asyncpg.connect(
    os.environ["PGDSN"], server_settings={"search_path": "guide_peer"}
)
queries = Queries(AsyncpgDriver(connection))
await queries.install()
pgq = PgQueuer(AsyncpgDriver(connection))
job_ids = await queries.enqueue("receipt.send", b"1")
DECORATED = "async def of_the_table(job): ..."

class Forgetful:
    """A key that a row of the table took is free for the next."""

    async def enqueue(self, *arguments, **options):
        try:
            return await queries_.enqueue(*arguments, **options)
        finally:
            await connection.execute("DELETE FROM pgqueuer WHERE dedupe_key IS NOT NULL")

    def __getattr__(self, name):
        return getattr(queries_, name)

queries_, queries = queries, Forgetful()
'''

OUTBOX = """
from datetime import UTC, datetime, timedelta
import django
from django.conf import settings
from django.core.management import call_command

settings.configure(
    INSTALLED_APPS=["django_celery_outbox"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    CELERY_OUTBOX_APP="__main__.app",
    USE_TZ=True,
)
django.setup()
import asyncio, os
os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
call_command("migrate", verbosity=0)
from django_celery_outbox import OutboxCelery

app = OutboxCelery("shop")

@app.task(name="shop.send_receipt", max_retries=3)
def send_receipt(order_id):
    pass

noon = datetime.now(UTC) + timedelta(days=1)
"""
OUR_CELERY = """
from celery import Celery, chain
from tasks_app.celery_tasks import run_from_pool

connection = session.connection()
app = Celery("shop", set_as_current=False)

@app.task(name="shop.send_receipt", max_retries=3)
def send_receipt(order_id):
    return order_id

@app.task(name="shop.tell")
def tell_them(order_id):
    return order_id

run_from_pool(send_receipt, tell_them)
"""

THEIRS = {
    "rq": RQ,
    "procrastinate": PROCRASTINATE,
    "pgqueuer": PGQUEUER,
    "django-celery-outbox": OUTBOX,
}
MORE_OF_OURS = {"django-celery-outbox": OUR_CELERY}
PROGRAMS = {
    "rq": ("rq", ["rq"]),
    "procrastinate": ("procrastinate", ["procrastinate"]),
    "pgqueuer": ("pgq", ["pgq"]),
    "django-celery-outbox": ("python manage.py", ["python", "-m", "django"]),
}
"""What a command begins with in a guide, and how it is run."""
OUTBOX_SETTINGS = """
INSTALLED_APPS = ["django_celery_outbox"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
CELERY_OUTBOX_APP = "celery.app"
"""
