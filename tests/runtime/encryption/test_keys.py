"""Keys come from a variable, a file or a function, and are shown nowhere."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tasks_app.domain.config.setting_sources import effective_settings
from tasks_app.domain.config.settings import Settings, load_settings
from tasks_app.domain.encryption import new_key
from tasks_app.domain.errors import ConfigurationError
from tasks_app.runtime.encryption.encryption import keys_of

KEY = new_key()


def text_of_keys() -> str:
    return f"k1:{KEY}"


def dict_of_keys() -> dict[str, object]:
    return {"k1": KEY, "k2": b"k" * 32}


def failing() -> str:
    raise RuntimeError("canary")


def test_each_source_gives_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# comment\nk1:{KEY}\n")
    here = __name__

    assert list(keys_of(Settings(encryption_keys=f"k1:{KEY}"))) == ["k1"]
    assert list(keys_of(Settings(encryption_keys_file=str(file)))) == ["k1"]
    assert list(keys_of(Settings(encryption_keys_from=f"{here}:text_of_keys"))) == ["k1"]
    assert list(keys_of(Settings(encryption_keys_from=f"{here}:dict_of_keys"))) == ["k1", "k2"]
    assert keys_of(Settings()) == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"encryption_keys_file": "/nowhere/keys"}, "cannot be read: No such file"),
        ({"encryption_keys_from": "nowhere:keys"}, "isn.t a function"),
        ({"encryption_keys_from": "nowhere"}, "isn.t a function"),
        ({"encryption_keys_from": f"{__name__}:failing"}, "its function raised RuntimeError"),
        ({"encryption_keys_from": "a:b", "encryption_keys_file": "c"}, "are both set"),
    ],
)
def test_what_is_wrong_is_said_without_a_value(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as refusal:
        keys_of(Settings(**given))

    assert "canary" not in str(refusal.value)


def test_a_wrong_variable_is_named_without_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKS_APP_ENCRYPTION_KEYS", "k1:canary")

    with pytest.raises(ConfigurationError, match="TASKS_APP_ENCRYPTION_KEYS is wrong") as refusal:
        load_settings()

    assert "canary" not in str(refusal.value)


def test_a_wrong_pattern_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKS_APP_ENCRYPTED_TASKS", "a b")

    with pytest.raises(ConfigurationError, match="TASKS_APP_ENCRYPTED_TASKS is wrong: use names"):
        load_settings()


@pytest.mark.parametrize(
    "key",
    [
        base64.b64encode(b"k" * 32).decode(),
        base64.b64encode(b"\xff" * 32).decode(),
        "//" + "A" * 41 + "=",
    ],
)
def test_settings_show_ids_alone(key: str) -> None:
    """The last one, behind ``k1:``, looks like a URL without a password."""
    settings = Settings(encryption_keys=f"k1:{key},k2:{KEY}")
    (shown,) = (e for e in effective_settings(settings) if e.name == "TASKS_APP_ENCRYPTION_KEYS")

    assert shown.value == "k1:***,k2:***"
    for text in (repr(settings), str(settings), settings.model_dump_json()):
        assert key not in text
        assert KEY not in text


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from tasks_app.runtime.encryption.encryption import Encryption

    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)

    with pytest.raises(ConfigurationError, match=r"tasks_app\[encryption\]"):
        Encryption(Settings(encryption_keys=f"k1:{KEY}")).sealed("{}", "payload", "t")
    Encryption(Settings()).keyring  # noqa: B018  nobody needs it without keys
