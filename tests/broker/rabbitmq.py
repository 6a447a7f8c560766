"""A virtual host of our own on the RabbitMQ that TASKS_APP_TEST_RABBITMQ_URL names."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from urllib.parse import quote, unquote, urlsplit

VARIABLE = "TASKS_APP_TEST_RABBITMQ_URL"
NO_RABBITMQ = "RabbitMQ is not tested"


class Rabbit:
    """One virtual host; as a house's broker it stands where Valkey stands."""

    def __init__(self, url: str) -> None:
        self.url = url

    def url_of(self, _number: int) -> str:
        """Return the URL, of which there is only one."""
        return self.url


def why_not() -> str | None:
    """Return why RabbitMQ cannot be tested here, and what to do; None: it can."""
    url = os.environ.get(VARIABLE)
    if not url:
        return f"start one, and set {VARIABLE}=amqp://guest:guest@127.0.0.1// for example."
    if not _is_shared(url) or shutil.which("rabbitmqctl"):
        return None
    return (
        f"{VARIABLE} names the virtual host /, and no rabbitmqctl is here to make another. "
        "Make one for tests, and name it in the URL."
    )


@contextlib.contextmanager
def virtual_host() -> Iterator[Rabbit]:
    """Give a new virtual host, and remove it with all its queues; or the one that the URL names."""
    url = os.environ[VARIABLE]
    if not _is_shared(url):
        yield Rabbit(url)
        return
    name = f"tasks_app-test-{uuid.uuid4().hex[:12]}"
    parts = urlsplit(url)
    _control("add_vhost", name)
    try:
        _control("set_permissions", "-p", name, parts.username or "guest", ".*", ".*", ".*")
        yield Rabbit(parts._replace(path=f"/{name}").geturl())
    finally:
        _control("delete_vhost", name)


def _is_shared(url: str) -> bool:
    return urlsplit(url).path in ("", "/", "//", "/%2F", "/%2f")


def _control(*arguments: str) -> None:
    subprocess.run(["rabbitmqctl", "-q", *arguments], check=True, capture_output=True, timeout=60)


class Account:
    """A user of one virtual host, who may do all there."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.name = f"tasks_app-test-{uuid.uuid4().hex[:12]}"
        self.password = uuid.uuid4().hex
        self.address = (parts.hostname or "127.0.0.1", parts.port or 5672)
        self._vhost = unquote(parts.path.removeprefix("/"))

    @property
    def url(self) -> str:
        return self.url_by_way_of(self.address[1])

    def url_by_way_of(self, port: int) -> str:
        """Return the URL with another port of this machine."""
        return f"amqp://{self.name}:{self.password}@127.0.0.1:{port}/{quote(self._vhost, safe='')}"

    def may(self, pattern: str) -> None:
        """Let the user do everything with queues of these names."""
        _control("set_permissions", "-p", self._vhost, self.name, *[pattern] * 3)

    def change_password(self, password: str) -> None:
        """Change it at the server; the URL keeps the old one."""
        _control("change_password", self.name, password)

    def hang_up(self) -> None:
        _control("close_all_connections", "--vhost", self._vhost, "a test")


@contextlib.contextmanager
def account(url: str) -> Iterator[Account]:
    """Make a user for the virtual host of ``url``, and remove it."""
    user = Account(url)
    _control("add_user", user.name, user.password)
    try:
        user.may(".*")
        yield user
    finally:
        _control("delete_user", user.name)
