"""The guide to mail, against a real SMTP server."""

from __future__ import annotations

from collections.abc import Iterator
from email import message_from_bytes
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from sqlalchemy.orm import Session

from tasks_app import create_task
from tasks_app.embedded.process import choose_port
from tasks_app.testing import crash_next, drain, travel
from tests.how_to.conftest import Load

TO = "ann@shop.example"


class Post:
    """Takes mails, or not."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.replies: list[str] = []

    async def handle_RCPT(self, _s: Any, _e: Any, envelope: Any, to: str, _o: Any) -> str:  # noqa: N802
        if self.replies:
            return self.replies.pop()
        envelope.rcpt_tos.append(to)
        return "250 OK"

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802
        mail = message_from_bytes(envelope.content)
        assert mail["Message-ID"] == f"<{mail['Resend-Idempotency-Key']}@shop.example>"
        self.ids.append(mail["Message-ID"])
        return "250 accepted"


@pytest.fixture(scope="module")
def controller() -> Iterator[Controller]:
    controller = Controller(Post(), hostname="127.0.0.1", port=choose_port(None))
    controller.start()
    yield controller
    controller.stop()


@pytest.fixture
def post(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> Post:
    controller.handler = post = Post()
    monkeypatch.setenv("SHOP_SMTP", f"127.0.0.1:{controller.port}")
    return post


@pytest.fixture(scope="module")
def mails(load: Load) -> Any:
    return load("idempotent-mail/mails.py")


def test_a_second_copy_has_the_id_of_the_first(mails: Any, session: Session, post: Post) -> None:
    mails.order_placed(session, 7, TO)
    crash_next("mail.confirm")
    drain(session).assert_succeeded()
    first, second = post.ids
    assert first == second


def test_an_order_has_one_confirmation(mails: Any, session: Session, post: Post) -> None:
    assert mails.order_placed(session, 7, TO).created
    drain(session).assert_succeeded()
    travel("400d", session)
    assert not mails.order_placed(session, 7, TO).created
    drain(session)
    assert len(post.ids) == 1


def test_a_wrong_address_fails_without_its_name(mails: Any, session: Session, post: Post) -> None:
    post.replies = ["550 no such user"]
    mails.order_placed(session, 7, TO)
    (run,) = drain(session).failed
    assert run.error == "Fail: SMTP 550"


def test_an_address_put_off_is_tried_again(mails: Any, session: Session, post: Post) -> None:
    post.replies = ["451 come back later"]
    mails.order_placed(session, 7, TO)
    assert [run.error for run in drain(session).waiting] == ["Retry: SMTP 451"]
    travel("1m", session)
    drain(session).assert_succeeded()
    assert len(post.ids) == 1


@pytest.mark.test_all
def test_a_server_that_is_away_charges_nothing(
    mails: Any, session: Session, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = mails.os.environ["SHOP_SMTP"]
    monkeypatch.setenv("SHOP_SMTP", "127.0.0.1:1")
    mails.order_placed(session, 7, TO)
    for _ in range(10):  # more often than `retry` allows
        assert drain(session).waiting
        travel("1h", session)
    monkeypatch.setenv("SHOP_SMTP", here)
    travel("1h", session)
    drain(session).assert_succeeded()
    assert len(post.ids) == 1


def test_at_most_once_runs_once(mails: Any, load: Load, session: Session, post: Post) -> None:
    goodbye = load("idempotent-mail/once.py").goodbye
    create_task(session, goodbye, mails.Confirmation(order_id=7, to=TO))
    crash_next(goodbye)
    (run,) = drain(session).failed
    assert "outcome unknown" in str(run.error)
    assert len(post.ids) == 1
