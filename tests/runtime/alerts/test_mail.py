"""Mail by a real SMTP server: with and without a password, refused, away, without TLS."""

from __future__ import annotations

from collections.abc import Iterator
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any, Self

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword
from sqlalchemy import Engine

from tasks_app import Settings
from tasks_app.domain.alerts import Alert, MailServer, read_mail
from tasks_app.runtime.alerts.channels import channels, to_mail
from tasks_app.runtime.alerts.watcher import deliver, record

MESSAGE = {"id": 7, "status": "firing", "key": "scan", "fact": "nobody", "advice": "Start beat."}
ADDRESSES = "/?from=tasks@example.org&to=ops@example.org,boss@example.org"


class Post:
    """A server that keeps what it got; it wants a password for whoever gives one."""

    def __init__(self, port: int) -> None:
        self.got: list[EmailMessage] = []
        self.to: list[list[str]] = []
        self.logins: list[tuple[bytes, bytes]] = []
        self.answer = "250 OK"
        self._controller = Controller(
            self,
            hostname="127.0.0.1",
            port=port,
            authenticator=self._login,
            auth_require_tls=False,
        )
        self.port = port

    def __enter__(self) -> Self:
        self._controller.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._controller.stop()

    def url(self, login: str = "") -> str:
        return f"smtp://{login}127.0.0.1:{self.port}{ADDRESSES}"

    def _login(self, _server: Any, _session: Any, _envelope: Any, _how: str, data: Any) -> Any:
        assert isinstance(data, LoginPassword)
        self.logins.append((data.login, data.password))
        return AuthResult(success=data.password == b"s3cret!", handled=False)

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
        if self.answer.startswith("250"):
            self.got.append(message_from_bytes(envelope.content, policy=policy.default))  # type: ignore[arg-type]
            self.to.append(envelope.rcpt_tos)
        return self.answer


@pytest.fixture
def post(free_port: int) -> Iterator[Post]:
    with Post(free_port) as server:
        yield server


def test_a_mail_says_what_and_what_to_do(post: Post) -> None:
    assert to_mail(read_mail(post.url("bob:s3cret%21@")))(MESSAGE)

    assert post.logins == [(b"bob", b"s3cret!")]
    assert post.to == [["ops@example.org", "boss@example.org"]]
    (mail,) = post.got
    assert (mail["Subject"], mail["From"]) == ("[tasks_app] firing: scan", "tasks@example.org")
    assert mail["Message-ID"] == "<alert-7-firing@tasks-app.invalid>"
    assert mail.get_content().splitlines()[:3] == ["nobody", "", "Start beat."]


def test_beginning_and_end_are_mailed_once(engine: Engine, post: Post) -> None:
    configured = channels(Settings(alert_mail=post.url()))
    for found in ([Alert("scan", "nobody", "Start beat.")], [], []):
        with engine.begin() as connection:
            record(connection, found, [])
        deliver(engine, configured)

    subjects = [mail["Subject"] for mail in post.got]
    assert subjects == ["[tasks_app] firing: scan", "[tasks_app] resolved: scan"]


def test_a_key_with_a_line_break_is_no_header(post: Post) -> None:
    send = to_mail(read_mail(post.url()))

    assert send({**MESSAGE, "key": "rule:x\r\nBcc: evil@example.org"})
    assert r"rule:x\r\nBcc: evil" in post.got[0]["Subject"]
    assert post.got[0]["Bcc"] is None


def test_a_wrong_password_is_not_logged(post: Post, caplog: pytest.LogCaptureFixture) -> None:
    assert not to_mail(read_mail(post.url("bob:wr0ng@")))(MESSAGE)

    assert f"not taken by smtp://127.0.0.1:{post.port}: SMTPAuthenticationError" in caplog.text
    assert "wr0ng" not in caplog.text
    assert "bob" not in caplog.text


def test_a_server_that_takes_none_now_is_asked_again(post: Post) -> None:
    send = to_mail(read_mail(post.url()))
    post.answer = "451 later"
    assert not send(MESSAGE)
    post.answer = "250 OK"

    assert send(MESSAGE)


def test_a_server_that_is_away(free_port: int, caplog: pytest.LogCaptureFixture) -> None:
    url = f"smtp://127.0.0.1:{free_port}{ADDRESSES}"

    assert not to_mail(read_mail(url))(MESSAGE)
    assert "ConnectionRefusedError" in caplog.text


def test_no_password_without_tls_to_another_machine(
    post: Post, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks_app.runtime.alerts.channels.is_local", lambda _host: False)
    server: MailServer = read_mail(post.url("bob:s3cret%21@"))

    assert not to_mail(server)(MESSAGE)
    assert post.logins == []
    assert "SMTPNotSupportedError" in caplog.text
