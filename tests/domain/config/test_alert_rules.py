"""Rules of alerts, and servers for mail, as settings say them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tasks_app import Settings
from tasks_app.domain.alerts import RULE_EXAMPLES, RuleKind, UserRule, parse_rules, read_mail
from tasks_app.domain.config.settings import load_settings
from tasks_app.domain.errors import ConfigurationError

URL = "smtps://bob%40x:p%2Fw@mail.example/?from=a@example.org&to=b@example.org,c@example.org"


def test_each_kind_is_read() -> None:
    assert parse_rules(";".join(RULE_EXAMPLES.values())) == (
        UserRule(RuleKind.FAILED, None, "mail", 10, timedelta(minutes=5)),
        UserRule(RuleKind.RATIO, "mail.send", None, 0.2, timedelta(minutes=15)),
        UserRule(RuleKind.AGE, None, "pay", 0, timedelta(minutes=2)),
        UserRule(RuleKind.PENDING, None, "bulk", 10_000, timedelta(0)),
        UserRule(RuleKind.SILENCE, "report.daily", None, 0, timedelta(hours=25)),
    )


def test_lines_and_empty_parts_are_fine() -> None:
    assert len(parse_rules("\n age queue=a > 2m ;\n\n pending name=b>5;")) == 2
    assert parse_rules("") == ()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("hunger queue=a > 1", "must begin with one of failed, ratio, age, pending, silence"),
        ("failed queue=a > 1", "write it as: failed queue=mail > 10 in 5m"),
        ("failed queue=a > many in 5m", "write it as: failed queue=mail > 10 in 5m"),
        ("failed > 1 in 5m", "write it as: failed"),
        ("ratio queue=a > 20 in 5m", "write it as: ratio name=mail.send > 20% in 15m"),
        ("age name=a > 5m", "write it as: age queue=pay > 2m"),
        ("age queue=a > soon", "write it as: age queue=pay > 2m"),
        ("age queue=a > 5m in 5m", "write it as: age queue=pay > 2m"),
        ("silence name=a > 3s", "names a time outside 1m .. 30d"),
        ("failed name=a > 3 in 40d", "names a time outside 1m .. 30d"),
        ("pending queue=a > 1000000", "is above 999999"),
        ("age queue=a > 5m; age queue=a > 9m", "there are two rules of age queue=a"),
    ],
)
def test_a_wrong_rule_is_one_sentence(
    wrong: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKS_APP_ALERTS", wrong)
    with pytest.raises(ConfigurationError) as refused:
        load_settings()

    assert str(refused.value).startswith("TASKS_APP_ALERTS is wrong: ")
    assert said in str(refused.value)


def test_a_mail_server_is_read() -> None:
    server = read_mail(URL)

    assert (server.host, server.port, server.tls) == ("mail.example", 465, True)
    assert (server.user, server.password, server.sender) == ("bob@x", "p/w", "a@example.org")
    assert server.receivers == ("b@example.org", "c@example.org")
    assert server.shown == "smtps://mail.example:465"
    assert "p/w" not in repr(server)
    assert read_mail("smtp://m/?from=a@b&to=c@d").port == 587


@pytest.mark.parametrize(
    "wrong",
    [
        "mail.example",
        "http://mail.example/?from=a@b&to=c@d",
        "smtp://?from=a@b&to=c@d",
        "smtp://secret@m/?from=a@b&to=c@d",
        "smtp://u:secret@m/?from=a@b",
        "smtp://u:secret@m/?to=a@b",
        "smtp://u:secret@m/?from=a&to=c@d",
        "smtp://u:secret@m:port/?from=a@b&to=c@d",
        "smtp://u:secret@m/?from=a@b&to=c@d%0aBcc:e@f",
    ],
)
def test_a_wrong_mail_server_is_not_repeated(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKS_APP_ALERT_MAIL", wrong)
    with pytest.raises(ConfigurationError) as refused:
        load_settings()

    assert "TASKS_APP_ALERT_MAIL is wrong: " in str(refused.value)
    assert "secret" not in str(refused.value)


def test_the_password_is_in_no_text_of_the_settings() -> None:
    assert "p%2Fw" not in repr(Settings(alert_mail=URL))
