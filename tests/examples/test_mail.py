"""The mail server's failures, as the shop's handlers meet them."""

from __future__ import annotations

import smtplib
from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest
from shop.mail import ADDRESS_VARIABLE, MailPutOffError, MailRefusedError, send_mail
from shop.mailserver import FAR_AWAY, NOBODY, PATIENCE, MailServer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MailServer]:
    server = MailServer()
    server.up()
    monkeypatch.setenv(ADDRESS_VARIABLE, server.address)
    yield server
    server.down()


def send(to: str, key: UUID) -> None:
    send_mail(to, "Your order", about="order:1", key=key)


def test_an_accepted_mail_is_counted_under_its_key(server: MailServer) -> None:
    key = uuid4()

    send("ada@example.org", key)
    send("ada@example.org", key)

    assert server.accepted == {("order:1", str(key)): 2}


def test_a_refused_address_is_final_and_its_name_stays_out_of_the_message(
    server: MailServer,
) -> None:
    with pytest.raises(MailRefusedError) as caught:
        send(NOBODY, uuid4())

    assert str(caught.value) == "SMTP 550"
    assert not server.accepted


def test_a_mail_that_is_put_off_is_taken_the_second_time(server: MailServer) -> None:
    key = uuid4()

    with pytest.raises(MailPutOffError, match="SMTP 451"):
        send(f"tony{PATIENCE}", key)
    send(f"tony{PATIENCE}", key)

    assert server.accepted == {("order:1", str(key)): 1}


def test_a_line_that_breaks_late_leads_to_a_second_copy_with_the_same_key(
    server: MailServer,
) -> None:
    key = uuid4()

    with pytest.raises(smtplib.SMTPServerDisconnected):
        send(f"frances{FAR_AWAY}", key)
    send(f"frances{FAR_AWAY}", key)

    assert server.accepted == {("order:1", str(key)): 2}


def test_a_server_that_was_down_comes_back_on_its_port_and_remembers(server: MailServer) -> None:
    key = uuid4()
    send("ada@example.org", key)

    server.down()
    with pytest.raises(OSError, match="refused"):
        send("ada@example.org", key)
    server.up()
    send("ada@example.org", key)

    assert server.accepted == {("order:1", str(key)): 2}
