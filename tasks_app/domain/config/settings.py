"""All settings, from the environment (``TASKS_APP_*``), with the reason beside each default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Annotated, ClassVar, Literal

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from tasks_app.domain.alerts import UserRule, parse_rules
from tasks_app.domain.config import field_types as types
from tasks_app.domain.config.retention import Keep, parse_keep
from tasks_app.domain.config.urls import PREFIX
from tasks_app.domain.errors import ConfigurationError


class LayeredSettings(BaseSettings):
    """Arguments override the environment, and that overrides a framework's configuration."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  pydantic's signature
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003  the same
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        framework = InitSettingsSource(settings_cls, init_kwargs=dict(FRAMEWORK_SETTINGS.read()))
        return (init_settings, env_settings, framework)


class AlertSettings(LayeredSettings):
    alert_webhook: types.Webhook | None = None
    """Where alerts are posted as JSON: `https://…`. With it, or the two below, the leader,
    `tasks-app dashboard` and `tasks-app metrics` watch."""
    alert_mail: types.Mail | None = None
    """Server and addresses for mails:
    `smtps://user:password@host/?from=tasks@example.org&to=ops@example.org,boss@example.org`."""
    alert_log: bool = False
    """Log alerts, though they are neither posted nor mailed."""
    alerts: types.UserRules = ""
    """Rules of your own, separated by `;`: `failed queue=mail > 10 in 5m; silence name=bill > 25h`.
    """
    alert_errors: types.Positive = 20
    """This many failed tasks in ten minutes, by a cause not marked as known, are an alert."""
    alert_snapshot: types.Positive = 1_000_000
    """A snapshot held for this many transactions is an alert: meanwhile vacuum removes no row."""
    alert_scan: types.Span = timedelta(seconds=30)
    """This long without a scan, plus five scan intervals, is an alert."""
    alert_due: types.Span = timedelta(minutes=1)
    """A task that is due for longer, while a worker is idle or none may run it, is an alert."""
    alert_rescues: types.Positive = 50
    """This many tasks whose process was lost, in ten minutes, are an alert."""
    alert_batch: types.Span = timedelta(minutes=30)
    """A running batch without progress for this long is an alert."""
    alert_events: types.Span = timedelta(days=7)
    """A task that waits for an event for longer is an alert."""
    alert_partitions: types.Positive = 3
    """Fewer days of partitions ahead are an alert; maintenance makes 14."""
    keep_alerts: types.Span = timedelta(days=30)
    """How long resolved alerts are kept."""

    @property
    def user_rules(self) -> tuple[UserRule, ...]:
        return parse_rules(self.alerts)


class EncryptionSettings(LayeredSettings):
    encrypted_tasks: types.EncryptedTasks = ""
    """Tasks whose payload, result and errors are stored encrypted, by name or queue:
    `patient.*,queue:health`. Producers and workers need the same. For one handler:
    `@handler(encrypt=True)`."""
    encryption_keys: types.EncryptionKeys | None = None
    """`id:key,id:key`, each key 32 bytes as base64: the first encrypts, all decrypt.
    `tasks-app encryption new-key` makes one."""
    encryption_keys_file: str | None = None
    """A file with the same, one key per line. It is read again when a key is missing."""
    encryption_keys_from: str = ""
    """`module:function` that returns the same text, or a dict of ids and keys: for a vault."""
    masked_paths: types.MaskedPaths = ""
    """Paths in payloads and results that are hidden from everybody:
    `card.number,mail.*:**.password`. Workers mask these values in texts of errors, too."""

    @property
    def encrypted(self) -> tuple[str, ...]:
        return _listed(self.encrypted_tasks)


class LargeValueSettings(LayeredSettings):
    large_values: types.LargeValues = ""
    """Where payloads and results above their limits are stored, outside of their rows: `database`,
    `folder:/path`, or `module:function` that returns an object store. Empty: they are refused.
    Producers and workers need the same."""
    large_limit: Annotated[int, Field(ge=64 * 1024, le=128 * 1024 * 1024)] = 64 * 1024 * 1024
    """Bytes of JSON in one large value. A worker holds several copies while it reads it."""


class Settings(EncryptionSettings, LargeValueSettings, AlertSettings):
    """Read once per process and handed down; frozen."""

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix=PREFIX,
        frozen=True,
        extra="ignore",
        env_ignore_empty=True,
        hide_input_in_errors=True,  # a URL has a password
    )

    database_url: types.DatabaseUrl | None = None
    """``postgresql+psycopg://user:password@host/name``. No default: a wrong guess is worse."""
    broker_url: types.BrokerUrl | None = None
    """``redis://…`` or ``amqp://…``. Workers and beat need it; producers may have it, for hints."""
    hints: bool = True
    """Producers announce commits, so that tasks start at once: by the broker or, without a broker
    URL, by NOTIFY to `tasks-app work` and beat."""
    imports: str = ""
    """Modules that declare handlers, separated by commas."""
    middleware: str = ""
    """Functions around every run: ``module:function``, outermost first, separated by commas."""
    celery_app: str = ""
    """Your own Celery app, as after ``celery -A``. Workers run its tasks from the pool, too."""
    outside_outbox: Literal["warn", "publish", "refuse"] = "warn"
    """``.delay()`` without an outbox: ``warn`` and publish, ``publish`` silently, or ``refuse``."""
    schema_name: types.SchemaName | None = Field(default=None, validation_alias=f"{PREFIX}SCHEMA")
    """The schema of our tables. None: the first one of the connection's search path."""
    events: Literal["all", "failures", "off"] = "all"
    """Which events workers with ``-E`` send Flower: about 80 us of CPU per task."""
    events_show: str = ""
    """Keys of payloads and results whose values Flower may show; all others are masked."""
    log_prefix: bool = True
    """Lines of `ctx.log` begin with id, name and attempt. Turn it off for your own formatter."""
    log_format: Literal["console", "json"] = "console"
    """How worker, beat and `tasks-app work` log: as text, or one JSON object per line."""
    log_lines: Annotated[int, Field(ge=0, le=1_000)] = 0
    """How many log lines of each attempt are kept: the last ones, of all loggers. 0: none."""
    log_bytes: Annotated[int, Field(ge=1024, le=1024 * 1024)] = 16 * 1024
    """Their total length; a single line has up to 2,000 characters."""
    metrics_auth: SecretStr | None = None
    """`name:password` for `tasks-app metrics`. None: it listens on this machine only."""
    payload_limit: Annotated[int, Field(ge=1024, le=1024 * 1024)] = 64 * 1024
    """Bytes of JSON. Rows are read in groups, so a big payload slows the others down."""
    result_limit: Annotated[int, Field(ge=1024, le=1024 * 1024)] = 64 * 1024
    """Bytes of JSON that a handler may return; the history keeps every result."""
    lease: types.Span = timedelta(seconds=30)
    """How long a vanished worker keeps its tasks. Long enough for three missed renewals."""
    scan_interval: types.Span = timedelta(seconds=1)
    """How late a task may start without a hint. A scan costs one cheap query per queue."""
    give_back_after: types.Span = timedelta(seconds=1)
    """When one task has run this long, claimed tasks that have not started go back to the pool."""
    flush_after: types.Span = timedelta(milliseconds=50)
    """How long a finished task may wait to be settled together with others."""
    park_for: types.ShortSpan = timedelta(seconds=15)
    """How long the scan skips a due row that no worker can run now."""
    timeout: types.Span | None = None
    """A handler that runs one task for longer is stopped by an exception. None: only if the task,
    handler or queue has a timeout."""
    hard_timeout: types.Span = timedelta(hours=1)
    """A child that runs one task for longer is killed, unless task or handler says otherwise."""
    stop_grace: types.Span | None = None
    """How long running tasks may go on after SIGTERM. None: until they end, as in Celery."""
    healthy_for: types.Span = timedelta(seconds=30)
    """Silence after which `healthz` fails. A broker's time-outs may block a worker that long."""
    run_dir: str | None = None
    """Folder for the files of `healthz`; each database and schema has its own folder in it. None: a
    folder of this user in the temporary directory."""
    history: types.HistoryOfQueues = "all"
    """Which succeeded tasks are kept: `all`; `failures`, those that were claimed more than once;
    `none`. `all,bulk=none`: a different value for one queue. A handler's own value overrides it."""
    keep_completed: types.Ages = "30d"
    """Age at which a day of the completed pool is dropped, as `90d` or `forever`. A look-up by id
    reads every day. `30d,mail.send=1d`: shorter for one name."""
    keep_errors: types.Ages = "forever"
    """The same for the error pool, row by row. A failed task is work that is not done."""
    keep_events: types.Span = timedelta(days=30)
    """How long an event that was sent waits for tasks that need it; while one does, it stays."""
    keep_batches: types.Ages = "365d"
    """Age at which complete or abandoned batch instances are deleted: `365d,payroll=forever`.
    Afterwards the same parameters start a new instance."""
    transitions: Literal["off", "failures", "all"] = "off"
    """Which transitions are logged in `task_transition`: `failures`, all ends of runs other than
    success; `all`, every transition and operators' actions. A line takes about 150 bytes; a task
    that succeeds at once has three with `all`."""
    keep_transitions: types.Span = timedelta(days=30)
    """How long those lines are kept."""
    keep_minute_counts: types.Span = timedelta(days=2)
    """How long the counters of single minutes are kept: 80 names and outcomes that are busy for two
    days take 115 MB."""
    keep_hour_counts: types.Span = timedelta(days=60)
    """The same for hours."""
    keep_day_counts: types.Span = timedelta(days=730)
    """The same for days."""
    dashboard_auth: types.Passwords | None = None
    """`name:password` for the dashboard, several separated by commas. None: without a check of your
    own it answers this machine only."""
    dashboard_roles: types.Roles = ""
    """`bob:admin,*:viewer`: viewer, operator or admin by name. Empty: all are admin."""
    prepare: bool = True
    """Off: no prepared statements, no startup options; for PgBouncer in transaction mode."""
    message_size: Annotated[int, Field(ge=1, le=500)] = 500
    """Most ids in one message. Beyond 500 nothing is gained, and returning tasks becomes costly."""
    claim_size: Annotated[int, Field(ge=1, le=500)] = 500
    """Most rows per claim. A child claims fewer of tasks that take longer: 0.2 s of work."""
    threads: Annotated[int, Field(ge=1, le=256)] = 1
    """Threads per prefork child for plain handlers. More threads only help handlers that wait."""
    async_concurrency: Annotated[int, Field(ge=1, le=10_000)] = 100
    """Async handlers at a time per child, in one event loop; one that waits costs little. With 1
    (and no threads) a child runs one task at a time, so that a crash has one possible cause."""
    async_connections: Annotated[int, Field(ge=1, le=200)] = 10
    """Database connections that the async handlers of a child share through ``ctx.session``."""
    max_crashes: types.Positive = 5
    """A task goes to the error pool after this many workers vanished while they ran it."""

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
            raise _not_configured("database", "DATABASE_URL=postgresql+psycopg://…")
        return self.database_url.get_secret_value()

    @property
    def broker(self) -> str:
        """The broker's URL, with its password; ConfigurationError if it is not set."""
        if self.broker_url is None:
            raise _not_configured("broker", "BROKER_URL=redis://…")
        return self.broker_url.get_secret_value()


def _not_configured(what: str, example: str) -> ConfigurationError:
    return ConfigurationError(
        f"No {what} is configured. Set {PREFIX}{example}, "
        'or run: tasks-app up -d && eval "$(tasks-app urls)"'
    )


def _listed(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def load_settings() -> Settings:
    """Read the environment; a ConfigurationError names the wrong variable, but not its value."""
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        name = str(first["loc"][0]).upper().removeprefix(PREFIX)
        problem = first["msg"].removeprefix("Value error, ")
        raise ConfigurationError(f"{PREFIX}{name} is wrong: {problem}.") from None


Source = Callable[[], Mapping[str, str]]
"""Returns texts as in the environment, by the names of settings, as ``scan_interval``."""


class FrameworkSettings:
    """The settings of a web framework, read at each load: a test may change the database."""

    def __init__(self) -> None:
        self._source: Source = dict

    def provide(self, source: Source) -> Source:
        """Use ``source`` from now on, and return the former one."""
        before, self._source = self._source, source
        return before

    def read(self) -> Mapping[str, str]:
        return self._source()


FRAMEWORK_SETTINGS = FrameworkSettings()
