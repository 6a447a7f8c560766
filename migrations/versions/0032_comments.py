"""A COMMENT on every table, view and column: psql's ``\\d+`` explains them, and docs/schema.md.

A comment takes a SHARE UPDATE EXCLUSIVE lock, which stops no reader and no writer. It does meet
autovacuum, which gives way after a second (``deadlock_timeout``): so this waits longer for a lock
than the other migrations, whose waiting stops everybody behind them.

A later migration that adds a column adds its comment; tests/docs/test_schema.py asks for it. The
comments of the partitions of task_completed belong to retention, and stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

OLDEST_CODE = "0030"

VIEWS = {"task_all", "task_schedules", "task_locks", "task_lock_report", "task_partitions"}

# A block: its tables and what they are, then their columns. An indented line continues the last.
COMMENTS = """
task_pending: The pending pool: tasks that wait (PENDING) or run (RUNNING). Write it through
    create_task or task_create(): CHECK constraints repeat the states, but the fence is a matter
    of the statements.
scan_at: When the scan looks at the row next. Never before due_at; later while it is parked.
parked: Why a due row is left alone for now, for people to read; parked_kind and parked_for decide.
parked_kind: What a due row is left alone for: order, queue, name or key (the kinds of limits),
    breaker, let_through (its breaker lets it run), handler (no live worker knows its name).
parked_for: The subject of parked_kind: an order key, queue, name, limit key or dependency.
lease_token: Random UUID of the claim, part of the fence. Null unless RUNNING.
lease_until: Until when the claim holds, by the database's clock. In no index on purpose.
outages: Runs that met a dependency which was down; they charge no failure. Null: none.
outage_since: When the first of these outages was.

task_completed: The completed pool: SUCCEEDED, SKIPPED, CANCELLED and EXPIRED tasks. One partition
    for each UTC day of finished_at; the default partition stays empty.

task_error: The error pool: FAILED tasks, until somebody requeues or removes them.

task_completed task_error:
result: What the handler returned.
error: Class and message of the last cause, in one line.
run_ms: How long the handler ran, in milliseconds of the worker's monotonic clock. Null unless it
    returned.
finished_at: When the task was settled.

task_pending task_completed task_error task_all:
id: Given at creation, kept through every move and requeue.
name: Which handler runs it.
queue: The lane of the pending pool, and the Celery queue of the same name.
priority: 0 goes first, 9 last; 5 unless somebody says otherwise.
biz_key: The business object that the task is about, for example order:42. Searchable, not unique.
unique_key: At most one pending task has this name and key. Null where the key stands in task_key.
order_key: Tasks with the same order key run one at a time, in any queue and under any name.
payload: JSON object for the handler.
headers: Small JSON object that travels along with the task.
state: PENDING or RUNNING; SUCCEEDED, SKIPPED, CANCELLED or EXPIRED; FAILED.
enabled: False: the task becomes SKIPPED when it is due.
attempt: Rises by one at every claim and never falls. Part of the fence; no limit reads it.
failures: How many attempts are charged against max_attempts.
crashes: How often the task was on board when its worker vanished. From 1 on it is claimed alone.
retry_level: In which wait of its retry policy the task is.
max_attempts: Null until the first claim writes the handler's; after that it stays.
due_at: The task does not run before this instant.
owner: Node, process and a random part of the child that runs the task, or ran it last.
started_at: When its newest run started.
expires_at: A task that becomes due, or due again, after this instant is EXPIRED.
cancel_requested_at: When somebody cancelled the task while it ran.
idempotency_key: The same at every attempt and after a requeue, for effects outside the database.
created_at: When the row was inserted.
limit_key: Counts against a limit of task_limit that matches it, where there is one.

task_pending task_completed task_error:
at_most_once: Null until the first claim writes the handler's; after that it stays.
retry: The retry policy as text. Null: the handler's.
timeout_ms: After so many milliseconds the handler gets an exception. Null: the handler's.
hard_timeout_ms: After so many milliseconds the child is killed. Null: the handler's.
schedule_id: The schedule that made the task. Null: somebody else did.
batch_id: The group (task_group) whose member the task is.
order_skips: What follows a task of this order key that failed. True: the next one runs (skips).
    Null or false: the next one waits (blocks).
fair_key: In a fair queue: whose share the task is part of.

task_all: The three pools in one view, for people. It leaves out the columns that only workers need.
pool: pending, completed or error.
finished_at: When the task was settled. Null in the pending pool.
lease_until: Until when the claim holds. Only in the pending pool.
parked: Why a due row is left alone for now. Only in the pending pool.
parked_kind: What it is left alone for. Only in the pending pool.
parked_for: The subject of parked_kind. Only in the pending pool.
result: What the handler returned. Null in the pending pool.
error: Class and message of the last cause. Null in the pending pool.
run_ms: How long the handler ran, in milliseconds. Null in the pending pool.

task_attempt: One row for each attempt that was retried, failed or rescued. It has no key: rows are
    only appended, and are read by task.
task_id: The task, in any pool.
attempt: Which claim of the task.
event: retry, fail or rescue.
kind: Class of the exception, or a word of ours: process died, worker vanished, connection lost,
    outcome unknown.
message: Text of the exception, at most 2,000 characters.
traceback: Frames and lines, without the values of variables.
owner: The child that ran the attempt.
started_at: When the attempt started.
ended_at: When this row was written.
run_ms: How long the handler ran, in milliseconds, where that is known.

task_dispatch: The ledger: one row for each message that is, as far as we know, in the broker or in
    the hands of a child. It hides its ids from the scan. Deleting rows does no harm: their ids are
    published again.
id: Travels in the message.
queue: Where the message was published.
ids: 1 to 500 task ids.
created_at: Rows whose scan_at is later than this are not hidden.
publishes: How often the message was published.
publish_at: When it is published again, unless somebody finishes it first.

task_worker: One row for each living child: its heartbeat, every third of the lease.
owner: The name of the child, as in the rows that it runs.
node: The name of the worker.
queues: What the worker consumes.
handlers: Which task names it knows.
running: List of {id, name, seconds}, with fraction and note where the handler reports progress.
started_at: When the first heartbeat came.
seen_at: When the last heartbeat came. A child that is silent for longer than the lease counts as
    gone.
threads: How many messages the child works on at a time: 1, except in a pool of threads.

task_lease: One row for each duty that one process does for all: scan and maintain. A leader saves
    the others work; nothing depends on there being only one. Deleting rows does no harm, but notes
    are lost with them.
name: The duty.
holder: Who leads: beat and its host and process, standby and the name of a child, schedule (the
    messages of another scheduler) or by hand.
token: Random UUID of the holder; what the holder writes later carries it.
rank: 2 for beat, 1 for a worker that stands in. The higher rank need not wait for the lower one.
held_since: When the holder became the leader.
held_until: Renewed about every second. Once it is over anybody may lead. Null: given back.
done_at: When the duty was last done, by any holder.
notes: For the next holder of scan: when each entry of beat_schedule last fired.

task_queue_pause: One row for each queue that an operator has paused. Nothing of it is published or
    claimed.
queue: The name of the queue; * means every queue.
since: When it was paused.
reason: Why, in the operator's words.
resume_at: When the pause ends by itself. Null: when somebody ends it. A row that is over does
    nothing.

task_queue: One row for each queue that has settings. Change it with tasks-app queues set.
queue: The name of the queue.
running_below: The queue runs only while fewer tasks than this run in other queues.
waiting_below: The queue runs only while no due task of another queue has waited for so long.
shut: What the last scan found: running or waiting tasks of other queues. Null: the gate is open.
retry: The retry policy of tasks that have none of their own.
max_attempts: The attempts of tasks that say nothing about them.
timeout_ms: The timeout of tasks that have none of their own, in milliseconds.
hard_timeout_ms: The hard timeout of tasks that have none of their own, in milliseconds.

task_queue_window: When a queue runs. A queue without a window runs always.
queue: The name of the queue.
days: On which days the window opens: 1 is Monday, 7 is Sunday.
opens: A time of the day.
closes: A time of the day. Not later than opens: on the next day. 24:00 is the end of the day.
zone: The time zone of both times.
calendar: The window does not open on the days of this calendar.

task_calendar: Days on which windows do not open.
name: The name that windows use.
days: The days.

task_breaker: One row for each dependency that a handler declared: the state of its circuit breaker.
    Change it with tasks-app breakers.
dependency: The name of the dependency.
names: The handlers that depend on it. Claims read this while the breaker is not closed.
ratio: The share of failed calls that opens the breaker.
least: How many calls there must be before the share counts.
window: How long a call counts.
open_for: How long the breaker stays open before it probes.
probes: How many tasks it lets through to try.
state: closed, open, probing or ramping.
mode: auto, or an operator's word (open, closed) that no outcome changes.
since: When the breaker came into this state.
look_at: When the scan looks at it next. Null: when a child reports something.
let_through: The probes of this round; or how many tasks were let through last while it ramps.
let_at: When they were let through.
reason: Why the breaker is in this state.

task_breaker_count: How calls ended, summed over a twentieth of the breaker's window. Deleting rows
    does no harm.
dependency: The name of the dependency.
at: When this twentieth began.
good: Calls that succeeded.
bad: Calls that failed.

task_breaker_held: Tasks that a breaker holds back; their parked_kind is breaker. A held task that
    is missing here is looked at again after a day.
dependency: The name of the dependency.
let: True: the task was let through, and may run although the breaker is not closed.
priority: The priority of the task.
task_id: The task.

task_pace: How much of a child's time a task of each name takes, as the children measured it. The
    scan fills messages with 0.4 s of work by it. Deleting rows does no harm: the next runs measure
    again. One row for each name that ever ran.
name: The name of the tasks.
run_s: Seconds, at least 0.0002. Of async handlers, and in children with several threads: the
    task's part of a time in which others run, too.
updated_at: Written after a change of a fifth, at most every 10 s; after a change of half at once.

task_schedule: One row for each schedule. Change it with tasks-app schedules or from Python:
    next_run_at and look_at must be computed anew from what they depend on.
id: Stands in schedule_id of its tasks.
name: The unique name of the schedule.
task: The name of its tasks.
queue: The queue of its tasks.
priority: The priority of its tasks.
payload: The payload of its tasks.
options: What else its tasks have: keys, retry policy, limits, headers.
kind: cron, every or once.
expression: A cron expression, a duration or an instant.
zone: The time zone in which a cron expression is read.
missed: What becomes of instants that were missed: skip, fire_once or fire_all(100, 1d).
overlap: What happens while the task before still waits or runs: allow, skip, queue or replace.
jitter: Its tasks become due up to so much after the instant.
starts_at: There is no instant before this one.
ends_at: There is no instant after this one.
enabled: False: the schedule does not fire.
next_run_at: The next instant. Null: there is none, or the schedule is disabled.
look_at: When the scan looks at the row next. Earlier than next_run_at while an instant is queued.
queued_at: The instant whose task is made when the task before is over.
last_run_at: The newest instant that made a task.
last_task_id: The task of that instant.
last_outcome: Of the newest instant: made, queued, skipped, replaced, missed or broken.
remark: Why the schedule is broken.
forgotten_until: The fires up to this instant are pruned; a backfill does not go back before it.
declared: What the code declared last. Null: an operator made the schedule.
declared_in: The module that declares it.
retired: True: that module declares it no longer.
changed_by: The database role that changed it last.
changed_at: When it was changed last.
created_at: When it was made.

task_schedule_fire: What became of each instant of a schedule, for 30 days. The primary key makes at
    most one task of an instant. Do not delete rows by hand: a backfill would make their tasks
    again.
schedule_id: The schedule. Its rows here go with it.
fire_at: The instant.
outcome: made, queued, skipped or replaced.
task_id: The task that was made.
fired_at: When this row was written.

task_schedules: The schedules, in a view for people.
name: The unique name of the schedule.
task: The name of its tasks.
queue: The queue of its tasks.
kind: cron, every or once.
expression: A cron expression, a duration or an instant.
zone: The time zone in which a cron expression is read.
enabled: False: the schedule does not fire.
next_run_at: The next instant.
last_run_at: The newest instant that made a task.
last_outcome: What became of the newest instant.
last_task_id: The task of the newest instant that made one.
missed: What becomes of instants that were missed.
overlap: What happens while the task before still waits or runs.
remark: Why the schedule is broken.
declared_in: The module that declares it.
changed_by: The database role that changed it last.
changed_at: When it was changed last.

task_key: Unique keys of the scopes queued, for_period and forever: one row for each key that is
    taken, or was lately. Deleting a row frees its key.
name: The name of the task; with unique_key the primary key.
unique_key: The key.
task_id: The task that has the key, in any pool, or in none any more.
scope: queued (taken while that task is PENDING), for_period or forever.
until: When the period ends. Null in the other scopes.

task_lock: One row for each resource that somebody has asked for. Each decision about the resource
    locks the row for a moment. A resource that nobody asked for during seven days is removed.
resource: The name of the resource. Ordered by bytes, which is the order in which groups are taken.
most: An operator's word on how many may hold a counted lock. Null: the code says it.
grants: How often a lock on it was granted.
denials: How often somebody who did not wait was denied.
used_at: When it was last asked for.

task_lock_holder: Who holds a group of locks, or waits for one. Deleting a row frees the group; its
    holder is told.
id: The place in the line.
token: Random UUID made by the holder. Code that knows it may release the group.
who: The name of the task, or of the process.
task_id: The task whose run holds the group. Null: code that is no task.
attempt: The attempt of that run.
lease_token: The lease token of that run: its locks end with it.
asked_at: When the group was asked for.
granted_at: When it was granted. Null: it still waits.
fence: Rises with every grant. Null: it still waits.
lease_until: After this instant anybody who wants one of the resources may take the group over.

task_lock_part: The resources of each group of locks.
resource: The name of the resource.
holder_id: The group. Its rows here go with it.
mode: exclusive, shared or counted.
most: How many may hold a counted lock. Null in the other modes.
blocked_by: Who was in the way when it was asked for. Null: nobody.

task_lock_wait: What became of waits for locks that somebody else held, for seven days.
resource: The resource that was taken.
mode: exclusive, shared or counted.
outcome: granted in the end; timed_out; denied (one row for each task, counted in times); vanished
    (the one who waited was gone); taken_over (the lease of a holder had ended: who lost the
    group, blocked_by took it).
who: Who waited; of taken_over, who lost the group.
task_id: The task that waited. Null: code that is no task.
blocked_by: Who was in the way.
times: How often.
asked_at: When it was asked for; of denials, the first time.
ended_at: When the wait was over; of denials, the last time.

task_locks: Which locks are held and waited for, in a view with one row for each resource.
resource: The name of the resource.
mode: exclusive, shared or counted.
state: held or waiting.
who: The name of the task, or of the process.
task_id: The task whose run it is. Null: code that is no task.
asked_at: When it was asked for.
granted_at: When it was granted. Null: it still waits.
lease_until: Until when it holds.
fence: Rises with every grant. Null: it still waits.
token: Random UUID made by the holder.
blocked_by: Who was in the way when the one who waits came.

task_lock_report: How much each resource is contended for, in a view, as far back as task_lock_wait
    reaches.
resource: The name of the resource.
most: An operator's word on how many may hold a counted lock.
grants: How often a lock on it was granted.
denials: How often somebody who did not wait was denied.
waits: Waits that ended with a grant or a time-out.
timed_out: Waits that ended with a time-out.
vanished: Waits whose process was gone before they ended.
taken_over: How often a lease had ended and the group was taken over.
waited: The time that all waits took together.
waited_95: 95 of 100 waits were shorter.
waited_most: The longest wait.
held_now: How many hold it now.
waiting_now: How many wait for it now.
used_at: When it was last asked for.

task_limit: What operators allow: one row for each queue, name or kind of limit key. Change it with
    tasks-app limits, which also looks at the tasks that wait.
kind: queue, name or key; with target the primary key.
target: Which one. A key that ends in * means each key that begins so, for itself.
most: How many run at a time. Null: any number.
rate: How many start in each period. Null: any number.
period: The period of the rate.
burst: How many may start at once after a quiet time.
changed_by: The database role that changed it last.
changed_at: When it was changed last.

task_gate: One row for each order key, and for each queue, name or limit key with a limit, that
    tasks came to lately. A claim locks the row while it counts the tasks that run; that
    number is stored nowhere. Deleting a row does no harm, but fills its bucket.
gate: order KEY, limit queue NAME, limit name NAME or limit key KEY. The same text stands in parked
    of the tasks that the gate holds back.
look_at: When somebody looks again whether a task can go on. Null: no task is held back.
tokens: What was left in the bucket of the rate at filled_at. Null: the bucket is full.
filled_at: When tokens was computed.

task_group: One row for each group. Statements that end a member lock the row, count the member and
    insert the callback. A group that is over counts nothing any more, and goes after 30 days.
id: Given at creation.
total: How many members there are, with one more for each inner group that is part of it.
succeeded: How many members are SUCCEEDED or SKIPPED.
failed: How many members are FAILED, CANCELLED or EXPIRED.
enough: With so many successes the group succeeds. Null: all members must succeed.
fail_fast: True: one failure makes the group fail.
outcome: SUCCEEDED or FAILED, computed from the columns before. Null: the group goes on.
then_row: The row of task_pending to insert when the group succeeds, without id and instants.
on_failure: The row of task_pending to insert when the group fails.
callback_id: The id that the inserted row will have, whichever of the two it is.
part_of: The group whose member the callback is.
created_at: When the group was created.
counted_at: When a member was counted last.

task_group_ids: The members of a group, up to 1,000 in a row.
group_id: The group; with no the primary key.
no: 0, 1 and so on.
ids: Task ids, in the order in which they were given.

task_progress: What runs keep with ctx.commit(), committed together with their effects. A row stays
    while its task may run again, requeue included.
task_id: The task.
checkpoint: JSON object. Null: only the progress was kept.
fraction: How much of the work is done, from ctx.progress.
note: The note of ctx.progress.
at: When it was committed last.

task_audit: What operators did, from the shell, by remote control or from Python: one line for each
    action, written in the same transaction; of a bulk, one that opens it and one for each step.
    No role of tasks-app grants may change or delete a line. The owner deletes what is old enough.
id: Of the line that opens a bulk: its token.
at: When it was done. For a bulk: the instant from which ages are counted.
role: Who did it, as the database knows them.
who: Who did it, in their own words: user and host of the shell, remote control, by= in Python.
action: cancel, requeue, edit, pause, resume, prune, pruned, schedule add and so on.
what: The selection, the queue or the schedule.
patch: Of an edit: what was merged into the payloads, values included.
bulk: Of a step: the line that opened the bulk.
until: Of the line that opens a bulk: ids above this one are not meant.
after: Of a bulk: up to which id all is done. Null: the bulk is over.
number: To how many tasks it was done.
ids: To which tasks, at most 500 of them; of the steps of a bulk, all.
answers: How many tasks met which answer.
left_out: Ids that were meant and left as they are, by reason. Never a payload.

task_queue_fair: One row for each fair queue.
queue: The name of the queue.
weights: Weights by fair key. A key that is missing here has weight 1.
changed_by: The database role that changed it last.
changed_at: When it was changed last.

task_partition: One row for each partition of a program. Ranges are half-open (low <= key < high); a
    bound that is missing is no bound. Ranges of one program and source do not overlap.
id: Given at creation.
program_id: Whose partition it is: payroll.extract is maintained by people, payroll.extract#17
    belongs to run 17.
partition_no: 0 or more, unique in a program.
batch_id: The run. Null in rows that people maintain.
step: The step of the run.
kind: range, values (in task_partition_value), hash, segment of a file, or marked rows.
key_type: integer, numeric, text, uuid, date, timestamp or timestamptz.
key_column: The column of the key where it is not the program's. Of a hash: the one with the bucket.
num_range: A range of numbers, of the buckets of a hash, or of the bytes of a segment.
time_range: A range of days or instants; instants without a zone as if they were UTC.
text_range: A range of text, ordered by the collation C, or of UUIDs in lower case.
owns_null: True: rows without a key belong here. One partition for each program and source.
modulus: Of a hash: how many buckets there are.
source: The table or file of its rows, where it is not the program's.
view_name: The view through which it is read, if one was made.
checksum: SHA-256 of a segment.
estimated_rows: How many rows the planner expects.
status: PLANNED, RUNNING, STOPPED, COMPLETED, FAILED, COMPENSATED or ABANDONED.
checkpoint: What the last chunk left, committed together with it.
read_rows: Rows read, in chunks that were committed.
written_rows: Rows written, in chunks that were committed.
skipped_rows: Rows skipped, in chunks that were committed.
failed_rows: Rows failed, in chunks that were committed.
task_id: The task that ran it last.
started_at: When its first run started.
changed_at: When the row was changed last.
ended_at: When it ended.
error: Why it failed.

task_partition_value: The keys of partitions of the kind values. A value has one partition in each
    program.
program_id: Whose partition it is.
value: The key as text: a number without needless zeros, a UUID in lower case.
partition_no: The partition that owns the key.

task_partitions: The partitions, in a view for people: bounds and values as text.
id: Given at creation.
program_id: Whose partition it is.
partition_no: 0 or more, unique in a program.
batch_id: The run. Null in rows that people maintain.
step: The step of the run.
kind: range, values, hash, segment or marked.
key_type: integer, numeric, text, uuid, date, timestamp or timestamptz.
key_column: The column of the key where it is not the program's.
low_key: The first key. Null: no bound. Instants are UTC.
high_key: The first key that no longer belongs to the partition. Null: no bound.
has_range: False: values, marked rows, or only rows without a key.
values: The keys of a partition of the kind values.
owns_null: True: rows without a key belong here.
modulus: Of a hash: how many buckets there are.
source: The table or file of its rows, where it is not the program's.
view_name: The view through which it is read, if one was made.
checksum: SHA-256 of a segment.
estimated_rows: How many rows the planner expects.
status: PLANNED, RUNNING, STOPPED, COMPLETED, FAILED, COMPENSATED or ABANDONED.
checkpoint: What the last chunk left, committed together with it.
read_rows: Rows read, in chunks that were committed.
written_rows: Rows written, in chunks that were committed.
skipped_rows: Rows skipped, in chunks that were committed.
failed_rows: Rows failed, in chunks that were committed.
task_id: The task that ran it last.
started_at: When its first run started.
changed_at: When the row was changed last.
ended_at: When it ended.
error: Why it failed.

task_marker: Marks of a program's rows, for tables that have no column for them.
program_id: Whose rows they are.
key: The key of the row, as text.
state: waiting, done or error.
partition_no: The partition that took the row.

task_batch: An instance of a batch job: the job with its parameters. Only one instance at a time has
    the same identity, abandoned ones aside.
id: Given at creation.
job: The name of the job.
identity: SHA-256 of the identifying parameters in canonical form.
params: All parameters.
status: RUNNING, STOPPING, STOPPED, FAILED, COMPLETED or ABANDONED.
run: 1, and one more with each restart.
created_at: When the instance was created.
started_at: When its newest run started.
ended_at: When it ended.
error: Which steps have failed.

task_batch_step: One row for each step of a batch instance.
batch_id: The instance.
step: The name of the step.
status: WAITING, PLANNING, RUNNING, COMPENSATING, REDUCING, COMPLETED, FAILED or STOPPED.
run: The run that the step was last part of.
round: How often aborted partitions were started again in this run.
plan: Method, number of partitions, rows, seconds and warnings of the planner.
result: What the reduce function returned.
started_at: When the step started.
ended_at: When it ended.
error: Why it failed.

task_batch_skip: Rows that chunks left out: their keys and the reasons, nothing else of them.
id: Given at creation.
batch_id: The instance.
step: The name of the step.
partition_no: The partition.
key: The key of the row, as text.
reason: Class and first line of the exception.
at: When the row was left out.

tasks_app_version: How far migrations have brought this schema, and which code may run on it.
version_num: The newest migration that ran.
oldest_code: The oldest code that may run on this schema, as the migration that it was written for.
"""


def upgrade() -> None:
    _comment({name: "'{}'".format(text.replace("'", "''")) for name, text in _texts()})


def downgrade() -> None:
    _comment(dict.fromkeys((name for name, _ in _texts()), "NULL"))


def _comment(literals: dict[str, str]) -> None:
    """All in one statement, in one order of tables: a lock is held for milliseconds."""
    statements = "".join(f"COMMENT ON {name} IS {text};\n" for name, text in literals.items())
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(f"DO $comments$ BEGIN\n{statements}END $comments$".replace(":", r"\:"))


def _texts() -> Iterator[tuple[str, str]]:
    """What is commented on, as COMMENT ON calls it, with its text."""
    for block in re.sub(r"\n +", " ", COMMENTS.strip()).split("\n\n"):
        (tables, about), *columns = (line.split(":", 1) for line in block.split("\n"))
        for table in tables.split():
            if about:
                yield f"{'VIEW' if table in VIEWS else 'TABLE'} {table}", about.strip()
            for column, text in columns:
                yield f'COLUMN {table}."{column}"', text.strip()
