"""All settings, from the environment (``TASKS_APP_*``), with the reason beside each default."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, ClassVar, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import SettingsConfigDict

from tasks_app.domain.config.alert_settings import AlertSettings
from tasks_app.domain.config.dashboard_access import checked_roles
from tasks_app.domain.config.encryption_settings import EncryptionSettings
from tasks_app.domain.config.field_types import (
    Ages,
    BrokerUrl,
    DatabaseUrl,
    HistoryOfQueues,
    Passwords,
    Positive,
    SchemaName,
    ShortSpan,
    Span,
)
from tasks_app.domain.config.large_value_settings import LargeValueSettings
from tasks_app.domain.config.retention import Keep, parse_keep
from tasks_app.domain.config.schema_name import PREFIX
from tasks_app.domain.errors import ConfigurationError


class Settings(EncryptionSettings, LargeValueSettings, AlertSettings):
    """Read once per process and handed down; frozen."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix=PREFIX,
        frozen=True,
        extra="ignore",
        env_ignore_empty=True,
        hide_input_in_errors=True,  # a URL has a password
    )

    database_url: DatabaseUrl | None = None
    """``postgresql+psycopg://user:password@host/name``. No default: a wrong guess is worse."""
    broker_url: BrokerUrl | None = None
    """``redis://…`` or ``amqp://…``. Workers and beat need it; producers may have it, for hints."""
    hints: bool = True
    """Producers tell what they committed, so that tasks start at once: the broker or, where no URL
    names one, by NOTIFY those who listen: `tasks-app work` and beat."""
    imports: str = ""
    """Modules that declare handlers, separated by commas."""
    middleware: str = ""
    """Functions around every run: ``module:function``, outermost first, separated by commas."""
    celery_app: str = ""
    """Your own Celery app, as after ``celery -A``. Workers run its tasks from the pool, too."""
    outside_outbox: Literal["warn", "publish", "refuse"] = "warn"
    """``.delay()`` without an outbox: ``warn`` and publish, only ``publish``, or ``refuse``."""
    schema_name: SchemaName | None = Field(default=None, validation_alias=f"{PREFIX}SCHEMA")
    """The schema of our tables. None: the first one of the connection's search path."""

    events: Literal["all", "failures", "off"] = "all"
    """Which events workers with ``-E`` send Flower: about 80 us of CPU per task."""
    events_show: str = ""
    """Keys of payloads and results whose values Flower may show; all others are masked."""

    log_prefix: bool = True
    """Lines of `ctx.log` begin with id, name and attempt. Turn it off for your own formatter."""

    log_format: Literal["console", "json"] = "console"
    """How worker, beat and `tasks-app work` log: for people, or a JSON object a line."""

    log_lines: Annotated[int, Field(ge=0, le=1_000)] = 0
    """How many lines that a handler logs are kept of each attempt: the last ones, of all loggers.
    0: none."""
    log_bytes: Annotated[int, Field(ge=1024, le=1024 * 1024)] = 16 * 1024
    """How long they may be together; a single one has up to 2,000 characters."""

    metrics_auth: SecretStr | None = None
    """`name:password` that `tasks-app metrics` asks for. None: it listens on this machine only."""

    payload_limit: Annotated[int, Field(ge=1024, le=1024 * 1024)] = 64 * 1024
    """Bytes of JSON. Rows are read in groups, so a big payload slows the others down."""
    result_limit: Annotated[int, Field(ge=1024, le=1024 * 1024)] = 64 * 1024
    """Bytes of JSON that a handler may return; the history keeps every result."""

    lease: Span = timedelta(seconds=30)
    """How long a vanished worker keeps its tasks. Long enough for three missed renewals."""
    scan_interval: Span = timedelta(seconds=1)
    """How late a task may start that no hint announced. A scan costs one cheap query per queue."""
    give_back_after: Span = timedelta(seconds=1)
    """When one task has run this long, claimed tasks that have not started go back to the pool."""
    flush_after: Span = timedelta(milliseconds=50)
    """How long a finished task may wait to be settled together with others."""
    park_for: ShortSpan = timedelta(seconds=15)
    """How long the scan leaves out a due row that no worker can run now."""
    timeout: Span | None = None
    """A handler that runs one task for longer is stopped by an exception. None: only where the
    task, handler or queue has a timeout."""
    hard_timeout: Span = timedelta(hours=1)
    """A child that runs one task for longer is killed, unless task or handler says otherwise."""
    stop_grace: Span | None = None
    """How long running tasks may go on after SIGTERM. None: until they end, as in Celery."""
    healthy_for: Span = timedelta(seconds=30)
    """Silence after which `healthz` says no. A broker's time-outs may block a worker that long."""
    run_dir: str | None = None
    """Where `healthz` finds its files, in one folder for each database and schema. None: a folder
    of this user in the temporary directory."""

    history: HistoryOfQueues = "all"
    """What is kept of tasks that succeeded: `all`; `failures`, those that were claimed more
    than once; `none`. `all,bulk=none`: otherwise in one queue. What a handler says comes first."""
    keep_completed: Ages = "30d"
    """Age at which a day of the completed pool is dropped, as `90d` or `forever`. A month answers
    most questions, and a look-up by id reads every day. `30d,mail.send=1d`: shorter for one name.
    """
    keep_errors: Ages = "forever"
    """The same for the error pool, row by row. A failed task is work not done: somebody decides."""
    keep_batches: Ages = "365d"
    """Age of batch instances that are complete or abandoned: `365d,payroll=forever`. Once one is
    gone, the same parameters start it anew; so keep it for longer than anybody may try that."""

    transitions: Literal["off", "failures", "all"] = "off"
    """Which moves of tasks have a line in `task_transition`: all ends of claims that are no
    successes, or all transitions and what operators do. A line takes about 150 bytes; a task that
    succeeds at once has three with `all`."""
    keep_transitions: Span = timedelta(days=30)
    """How long those lines are kept."""

    keep_minute_counts: Span = timedelta(days=2)
    """How long the counters of single minutes are kept: 80 names and outcomes that are busy in
    every minute of two days are 115 MB."""
    keep_hour_counts: Span = timedelta(days=60)
    """The same of hours."""
    keep_day_counts: Span = timedelta(days=730)
    """The same of days."""

    dashboard_auth: Passwords | None = None
    """`name:password` of who may see the dashboard, several separated by commas. None: without your
    own check of who asks, it answers this machine alone."""
    dashboard_roles: str = ""
    """`bob:admin,*:viewer`: viewer, operator or admin by name. Empty: all are admin."""

    prepare: bool = True
    """Off: no prepared statements, no startup options; for PgBouncer in transaction mode."""
    message_size: Annotated[int, Field(ge=1, le=500)] = 500
    """Most ids in one message. Beyond 500 nothing is gained, and giving tasks back gets costly."""
    claim_size: Annotated[int, Field(ge=1, le=500)] = 500
    """Most rows per claim. A child claims fewer of tasks that take longer: 0.2 s of work."""
    threads: Annotated[int, Field(ge=1, le=256)] = 1
    """Threads per prefork child for plain handlers. More of them only help handlers that wait."""
    async_concurrency: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Async handlers at a time per child, in one event loop; one that waits costs little. With 1
    (and no threads) a child runs one task at a time, so that a death has one suspect."""
    async_connections: Annotated[int, Field(ge=1, le=200)] = 10
    """Database connections that the async handlers of a child share through ``ctx.session``."""
    max_crashes: Positive = 5
    """A task that this many vanished workers held goes to the error pool."""

    _roles = field_validator("dashboard_roles")(checked_roles)

    @property
    def renew_every(self) -> timedelta:
        """A third of the lease: two renewals may fail before the lease ends."""
        return self.lease / 3

    @property
    def completed(self) -> Keep:
        return parse_keep(self.keep_completed)

    @property
    def errors(self) -> Keep:
        return parse_keep(self.keep_errors)

    @property
    def batches(self) -> Keep:
        return parse_keep(self.keep_batches)

    @property
    def modules(self) -> tuple[str, ...]:
        return _listed(self.imports)

    @property
    def events_shown(self) -> tuple[str, ...]:
        return _listed(self.events_show)

    @property
    def layers(self) -> tuple[str, ...]:
        return _listed(self.middleware)

    @property
    def database(self) -> str:
        """The database's URL, with its password; ConfigurationError if it is not set."""
        if self.database_url is None:
            raise ConfigurationError(
                f"No database is configured. Set {PREFIX}DATABASE_URL=postgresql+psycopg://…, "
                'or run: tasks-app up -d && eval "$(tasks-app urls)"'
            )
        return self.database_url.get_secret_value()

    @property
    def broker(self) -> str:
        """The broker's URL, with its password; ConfigurationError if it is not set."""
        if self.broker_url is None:
            raise ConfigurationError(
                f"No broker is configured. Set {PREFIX}BROKER_URL=redis://…, "
                'or run: tasks-app up -d && eval "$(tasks-app urls)"'
            )
        return self.broker_url.get_secret_value()


def _listed(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def load_settings() -> Settings:
    """Read the environment; a ConfigurationError names the wrong variable, never its value."""
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        name = str(first["loc"][0]).upper().removeprefix(PREFIX)
        problem = first["msg"].removeprefix("Value error, ")
        raise ConfigurationError(f"{PREFIX}{name} is wrong: {problem}.") from None
