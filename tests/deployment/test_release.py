"""What ``make release-check`` finds in archives and licences, and what ``make release`` writes."""

from __future__ import annotations

import datetime
import shutil
import zipfile
from pathlib import Path

import pytest

from dev.release import archives, licences, version
from dev.release.environment import Environment
from tests.docs.reading import PROJECT

pytestmark = pytest.mark.test_all

TODAY = datetime.date(2026, 12, 1)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return archives.build(PROJECT, tmp_path_factory.mktemp("dist"))


def with_file(wheel: Path, folder: Path, name: str, words: bytes) -> Path:
    changed = folder / wheel.name
    shutil.copy(wheel, changed)
    with zipfile.ZipFile(changed, "a") as archive:
        archive.writestr(name, words)
    return changed


def without_file(wheel: Path, folder: Path, name: str) -> Path:
    changed = folder / wheel.name
    with zipfile.ZipFile(changed, "w") as archive:
        for each, words in archives.contents(wheel).items():
            if each != name:
                archive.writestr(each, words)
    return changed


def test_wheel_and_sdist_hold_the_package_alone(built: tuple[Path, Path]) -> None:
    own = archives.own_words(PROJECT)
    assert [line for each in built for line in archives.findings(each, own)] == []
    assert list(archives.metadata_findings(built)) == []
    assert list(licences.vendored_findings(built[0])) == []


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("tests/test_it.py", b"", "not part of the package"),
        ("tasks_app/__pycache__/a.cpython-311.pyc", b"", "left over"),
        ("tasks_app/.env", b"", "left over"),
        ("tasks_app/a.py", b"-----BEGIN RSA PRIVATE KEY-----", "a key or a token"),
        (
            "tasks_app/a.py",
            b"# see /builds/here/tasks_app",
            "this machine or its index: /builds/here",
        ),
        ("tasks_app/a.py", b"index = 'https://index.corp/simple'", "its index: index.corp"),
    ],
)
def test_a_wrong_file_is_found(
    built: tuple[Path, Path], tmp_path: Path, name: str, words: bytes, said: str
) -> None:
    changed = with_file(built[0], tmp_path, name, words)
    (line,) = archives.findings(changed, {b"/builds/here", b"index.corp"})
    assert said in line
    assert name in line


def test_a_name_that_only_begins_like_a_place_is_none(
    built: tuple[Path, Path], tmp_path: Path
) -> None:
    changed = with_file(
        built[0], tmp_path, "tasks_app/a.py", b"/builds/hereafter and my.index.corp"
    )
    assert list(archives.findings(changed, {b"/builds/here", b"index.corp"})) == []


@pytest.mark.parametrize("name", ["tasks_app/py.typed", "tasks_app/_migrations/env.py"])
def test_a_file_that_is_not_there_is_found(
    built: tuple[Path, Path], tmp_path: Path, name: str
) -> None:
    changed = without_file(built[0], tmp_path, name)
    assert list(archives.findings(changed, set())) == [f"{changed.name} lacks {name}"]


def test_a_vendored_file_is_what_its_table_says(built: tuple[Path, Path], tmp_path: Path) -> None:
    licence = f"{licences.STATIC}htmx.LICENSE.txt"
    other = with_file(built[0], tmp_path, f"{licences.STATIC}chart.min.js", b"")
    assert list(licences.vendored_findings(other)) == [
        f"VENDORED.md does not name {licences.STATIC}chart.min.js"
    ]

    bare = without_file(built[0], tmp_path, licence)
    assert list(licences.vendored_findings(bare)) == [
        "htmx.min.js comes without its licence, htmx.LICENSE.txt"
    ]

    gone = without_file(built[0], tmp_path, f"{licences.STATIC}htmx.min.js")
    (line,) = licences.vendored_findings(gone)
    assert "is not the file" in line


def test_licences_that_ask_for_more_are_found() -> None:
    good = {
        "celery": "BSD License",
        "psycopg": "LGPL-3.0-only",
        "greenlet": "MIT AND PSF-2.0",
        "dateutil": "Apache Software License; BSD License",
        "certifi": "Mozilla Public License 2.0 (MPL 2.0)",
    }
    bad = {
        "a": "UNKNOWN",
        "b": "GPL-3.0-only",
        "c": "MIT AND AGPL-3.0-only",
        "d": "BSD-3-Clause-No-Nuclear",
    }

    assert list(licences.findings(good)) == []
    assert [line.split()[3] for line in licences.findings(bad | good)] == ["a", "b", "c", "d"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "0.1.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## Unreleased\n\n- A thing.\n\n## [0.1.0] - 2026-11-23\n\nFirst.\n"
    )
    return tmp_path


def test_a_version_is_given_to_package_and_changelog(checkout: Path) -> None:
    said = version.give(checkout, "0.2.0", TODAY)
    assert 'version = "0.2.0"' in (checkout / "pyproject.toml").read_text()
    assert (
        (checkout / "CHANGELOG.md")
        .read_text()
        .startswith(
            "# Changelog\n\n## Unreleased\n\n## [0.2.0] - 2026-12-01\n\n- A thing.\n\n## [0.1.0]"
        )
    )
    assert "git tag v0.2.0" in said


@pytest.mark.parametrize(
    ("wanted", "said"),
    [("0.1.0", "not newer than 0.1.0"), ("0.0.9", "not newer"), ("next", "is no version")],
)
def test_a_wrong_version_changes_nothing(checkout: Path, wanted: str, said: str) -> None:
    before = [path.read_text() for path in sorted(checkout.iterdir())]
    with pytest.raises(version.RefusedError, match=said):
        version.give(checkout, wanted, TODAY)
    assert [path.read_text() for path in sorted(checkout.iterdir())] == before


def test_a_release_of_nothing_is_refused(checkout: Path) -> None:
    version.give(checkout, "0.2.0", TODAY)
    with pytest.raises(version.RefusedError, match="nothing under Unreleased"):
        version.give(checkout, "0.3.0", TODAY)


def test_the_first_release_has_none_before_it(checkout: Path) -> None:
    (checkout / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n- All of it.\n")
    version.give(checkout, "0.2.0", TODAY)
    changes = (checkout / "CHANGELOG.md").read_text()
    assert changes.endswith("## Unreleased\n\n## [0.2.0] - 2026-12-01\n\n- All of it.\n")


def test_this_checkout_can_be_given_a_version(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "CHANGELOG.md"):
        shutil.copy(PROJECT / name, tmp_path)
    assert "999.0" in version.give(tmp_path, "999.0", TODAY)


@pytest.mark.timeout(120)
def test_a_clean_environment_has_the_package_and_no_checkout(
    built: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    monkeypatch.setenv("TASKS_APP_SCHEMA", "of_the_checkout")
    made = Environment(tmp_path / "environment", built[0], ["otel"])
    script = """
import os, tasks_app, opentelemetry.trace
print(tasks_app.__file__, [name for name in os.environ if "TASKS_APP" in name])
"""
    said = made.run("python", "-c", script).stdout.decode()
    assert said.startswith(str(tmp_path))
    assert said.endswith("[]\n")
