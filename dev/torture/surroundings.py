"""The servers of a run: which PostgreSQL, with or without PgBouncer, and which broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import psycopg
from sqlalchemy import make_url

from dev.torture.brokers import Broker, ValkeyBroker
from dev.torture.fault_proxy import FaultProxy
from dev.torture.pgbouncer import PgBouncer, pgbouncer_program
from dev.torture.rabbit_broker import RabbitBroker
from dev.torture.rabbit_node import Node, rabbitmq_program
from tasks_app.embedded import servers
from tasks_app.embedded.process import HOST
from tasks_app.embedded.servers import ROLE, Postgres
from tasks_app.embedded.stack import temporary

FOLDERS = {18: "pginstall18", 16: "pginstall"}
"""Where the wheel has each PostgreSQL."""
NEWEST = max(FOLDERS)
ROLE_BEHIND_A_POOLER = (f"ALTER ROLE {ROLE} SET client_connection_check_interval = 500",)
"""As docs/operations/configuration.md says."""


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of one run, all up."""

    postgres: Postgres
    broker: Broker
    database_url: str
    """Where our processes find the database, if nobody stands between."""
    settings: dict[str, str] = field(default_factory=dict)
    """What our processes must be told of it."""
    pooler: PgBouncer | None = None
    behind: FaultProxy | None = None
    """Between the pooler and PostgreSQL."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """A choice of servers for a run."""

    postgres: int = NEWEST
    pgbouncer: bool = False
    rabbitmq: bool = False

    @property
    def words(self) -> str:
        pooler = " behind a PgBouncer in transaction mode" if self.pgbouncer else ""
        return (
            f"a PostgreSQL {self.postgres}{pooler}, a {'RabbitMQ' if self.rabbitmq else 'Valkey'}"
        )

    @property
    def options(self) -> str:
        """Return the command line's options for them."""
        asked = {
            f" --postgres {self.postgres}": self.postgres != NEWEST,
            " --pgbouncer": self.pgbouncer,
            " --rabbitmq": self.rabbitmq,
        }
        return "".join(option for option, is_asked in asked.items() if is_asked)

    def why_not(self) -> str | None:
        """Return what this machine lacks for them; None: nothing."""
        if self.pgbouncer and pgbouncer_program() is None:
            return "PgBouncer is not installed here. Install it, or leave --pgbouncer away."
        if self.rabbitmq and rabbitmq_program("rabbitmq-server") is None:
            return "RabbitMQ is not installed here. Install it, or leave --rabbitmq away."
        return None

    @contextmanager
    def servers(self) -> Iterator[Servers]:
        """Start them, with an empty database; stop and remove them afterwards."""
        servers.POSTGRES = FOLDERS[self.postgres]
        if self.postgres != NEWEST:
            servers.LOCALE = ()  # type: ignore[assignment]  # 16 has none that is built in
        with ExitStack() as stack:
            wheels = stack.enter_context(temporary(persist=True))
            broker: Broker = ValkeyBroker(wheels.valkey)
            if self.rabbitmq:
                wheels.valkey.stop()
                broker = RabbitBroker(stack.enter_context(Node()))
            postgres = wheels.postgres
            if not self.pgbouncer:
                yield Servers(postgres, broker, postgres.url)
                return
            url = make_url(postgres.url)
            direct = url.set(drivername="postgresql").render_as_string(hide_password=False)
            with psycopg.connect(direct, autocommit=True) as connection:
                for statement in ROLE_BEHIND_A_POOLER:
                    connection.execute(statement.encode())
            behind = stack.enter_context(FaultProxy((HOST, postgres.port)))
            pooler = PgBouncer(wheels.folder, behind.port, url.password or "")
            stack.enter_context(pooler)
            yield Servers(
                postgres, broker, pooler.url, {"TASKS_APP_PREPARE": "off"}, pooler, behind
            )
