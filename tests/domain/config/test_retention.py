"""Ages as they are written in settings."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tasks_app import Settings
from tasks_app.domain.config.retention import Keep, format_age, parse_keep
from tasks_app.domain.config.settings import load_settings
from tasks_app.domain.errors import ConfigurationError

DAY = timedelta(days=1)


@pytest.mark.parametrize(
    ("text", "keep"),
    [
        ("30d", Keep(30 * DAY)),
        ("forever", Keep(None)),
        ("30d, mail.send=12h", Keep(30 * DAY, {"mail.send": DAY / 2})),
        ("7d,a=forever,b=1d", Keep(7 * DAY, {"a": None, "b": DAY})),
    ],
)
def test_what_is_written_is_read(text: str, keep: Keep) -> None:
    assert parse_keep(text) == keep


@pytest.mark.parametrize("text", ["", "0s", "30 days", "a=1d", "30d,a", "30d,=1d", "30d,a b=1d"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_keep(text)


def test_the_longest_age_is_that_of_the_partition() -> None:
    assert parse_keep("30d,a=90d,b=1d").longest == 90 * DAY
    assert parse_keep("30d,a=forever,b=1d").longest is None
    assert parse_keep("forever").longest is None


def test_names_with_less_than_the_longest_go_early_and_no_others() -> None:
    assert parse_keep("30d,a=90d,b=1d").early == {"b": DAY}
    assert parse_keep("30d,a=30d").early == {}
    assert parse_keep("forever,b=1d").early == {"b": DAY}


def test_the_shortest_age_is_the_first_that_matters() -> None:
    assert parse_keep("forever,b=1d").shortest == DAY
    assert parse_keep("forever").shortest is None


def test_ages_are_written_as_they_are_read() -> None:
    assert (format_age(None), format_age(30 * DAY)) == ("forever", "30d")


def test_by_default_errors_stay_and_completed_ones_go_after_a_month() -> None:
    settings = Settings()

    assert settings.completed == Keep(30 * DAY)
    assert settings.errors == Keep(None)


def test_a_setting_that_cannot_be_read_names_its_variable(monkeypatch) -> None:
    monkeypatch.setenv("TASKS_APP_KEEP_ERRORS", "a while")

    with pytest.raises(ConfigurationError, match="TASKS_APP_KEEP_ERRORS is wrong: use ages such"):
        load_settings()
