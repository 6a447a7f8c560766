"""All settings, from the environment (``TASKS_APP_*``), with the reason beside each default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Annotated, ClassVar, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from tasks_app.domain.alerts import UserRule, parse_rules
from tasks_app.domain.config.field_types import (
    Ages,
    BrokerUrl,
    DatabaseUrl,
    EncryptedTasks,
    EncryptionKeys,
    HistoryOfQueues,
    LargeValues,
    Mail,
    MaskedPaths,
    Passwords,
    Positive,
    SchemaName,
    ShortSpan,
    Span,
    UserRules,
    Webhook,
    checked_roles,
)
from tasks_app.domain.config.retention import Keep, parse_keep
from tasks_app.domain.config.urls import PREFIX
from tasks_app.domain.errors import ConfigurationError


class LayeredSettings(BaseSettings):
    """Arguments go before the environment, and that before a framework's configuration."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  pydantic's signature
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003  the same
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Say so to pydantic."""
        framework = InitSettingsSource(settings_cls, init_kwargs=dict(FRAMEWORK_SETTINGS.read()))
        return (init_settings, env_settings, framework)


class AlertSettings(LayeredSettings):
    """A part of ``Settings``."""

    alert_webhook: Webhook | None = None
    """Where alerts are posted as JSON: `https://…`. With it, or the two below, the leader watches,
    and `tasks-app dashboard` and `metrics` do."""
    alert_mail: Mail | None = None
    """By which server they are mailed:
    `smtps://user:password@host/?from=tasks@example.org&to=ops@example.org,boss@example.org`."""
    alert_log: bool = False
    """Log alerts, though they are neither posted nor mailed."""
    alerts: UserRules = ""
    """Rules of your own, separated by `;`: `failed queue=mail > 10 in 5m; silence name=bill > 25h`.
    """
    alert_errors: Positive = 20
    """So many tasks that fail in ten minutes by one cause nobody marked as known are an alert."""
    alert_snapshot: Positive = 1_000_000
    """A snapshot that somebody holds for so many transactions is an alert: no row can be cleared
    away meanwhile."""
    alert_scan: Span = timedelta(seconds=30)
    """So long without a scan, and five scan intervals more, is an alert."""
    alert_due: Span = timedelta(minutes=1)
    """A task that is due for longer, while a worker is idle or no worker may run it, is an alert.
    """
    alert_rescues: Positive = 50
    """So many tasks whose process was lost, in ten minutes, are an alert."""
    alert_batch: Span = timedelta(minutes=30)
    """A running batch that did not move for so long is an alert."""
    alert_partitions: Positive = 3
    """Fewer days of partitions ahead are an alert; maintenance makes 14."""
    keep_alerts: Span = timedelta(days=30)
    """How long alerts that are over are kept."""

    @property
    def user_rules(self) -> tuple[UserRule, ...]:
        return parse_rules(self.alerts)


class EncryptionSettings(LayeredSettings):
    """A part of ``Settings``."""

    encrypted_tasks: EncryptedTasks = ""
    """Tasks whose payload, result and errors are stored encrypted, by name or queue:
    `patient.*,queue:health`. Producers and workers need the same. `@handler(encrypt=True)` says it
    of one handler."""
    encryption_keys: EncryptionKeys | None = None
    """`id:key,id:key`, each key 32 bytes as base64: the first encrypts, all decrypt.
    `tasks-app encryption new-key` makes one."""
    encryption_keys_file: str | None = None
    """A file with the same, a key a line. It is read again when a key is missing."""
    encryption_keys_from: str = ""
    """`module:function` that returns the same text, or a dict of ids and keys: for a vault."""
    masked_paths: MaskedPaths = ""
    """Paths of payloads and results that nobody is shown: `card.number,mail.*:**.password`. Workers
    mask these values in the texts of errors, too."""

    @property
    def encrypted(self) -> tuple[str, ...]:
        return tuple(each.strip() for each in self.encrypted_tasks.split(",") if each.strip())


class LargeValueSettings(LayeredSettings):
    """A part of ``Settings``."""

    large_values: LargeValues = ""
    """Where payloads and results above their limits are kept outside of their rows: `database`,
    `folder:/path`, or `module:function` that returns an object store. Empty: they are refused.
    Producers and workers need the same."""
    large_limit: Annotated[int, Field(ge=64 * 1024, le=128 * 1024 * 1024)] = 64 * 1024 * 1024
    """Bytes of JSON of one of them. A worker holds it several times while it reads it."""


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


Source = Callable[[], Mapping[str, str]]
"""Returns texts as the environment would have them, by the names of settings: ``scan_interval``."""


class FrameworkSettings:
    """The one source of a process. It is asked at each load: a test may change the database."""

    def __init__(self) -> None:
        self._source: Source = dict

    def provide(self, source: Source) -> Source:
        """Ask ``source`` from now on, and return what was asked before."""
        before, self._source = self._source, source
        return before

    def read(self) -> Mapping[str, str]:
        return self._source()


FRAMEWORK_SETTINGS = FrameworkSettings()
"""Where a framework enters."""
