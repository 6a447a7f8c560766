"""A PostgreSQL data folder, made once, as a whole or not at all."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import psutil

from tasks_app.embedded.errors import EmbeddedError
from tasks_app.embedded.servers.process import clean_environment

if TYPE_CHECKING:
    from pathlib import Path

    from tasks_app.embedded.home import Home

ROLE = "tasks_app"
LOCALE = ("--locale-provider=builtin", "--builtin-locale=C.UTF-8")
"""The built-in locale (PostgreSQL 17 docs §23.1.4) is the same on every machine; C.UTF-8 of libc is
missing on some."""
PATIENCE_S = 120
CLOCK_TOLERANCE_S = 5


def make_cluster(home: Home, programs: Path, password: str) -> None:
    """Run ``initdb`` unless the data folder exists.

    It works in a folder that is renamed at the end, because an interrupted ``initdb`` leaves one
    that looks complete.
    """
    target = home.root / "pg"
    if (target / "PG_VERSION").exists():
        home.data("pg")
        _remove_stale_pid_file(target / "postmaster.pid")
        return
    shutil.rmtree(target, ignore_errors=True)
    shutil.rmtree(home.root / "pg.new", ignore_errors=True)
    draft = home.data("pg.new")
    # initdb insists on an empty folder, so the password lies beside the cluster.
    word, cluster = draft / "password", draft / "cluster"
    word.touch(mode=0o600)
    word.write_text(password, encoding="ascii")
    cluster.mkdir(mode=0o700)
    home.data("pg.new")
    _initdb(home, programs, cluster, word)
    cluster.rename(target)
    shutil.rmtree(draft)


def _initdb(home: Home, programs: Path, cluster: Path, word: Path) -> None:
    command = [
        str(programs / "bin" / "initdb"),
        f"--pgdata={cluster}",
        f"--username={ROLE}",
        f"--pwfile={word}",
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        "--no-locale",
        *LOCALE,
    ]
    account = home.account
    result = subprocess.run(  # noqa: S603  our own arguments, no shell
        command,
        cwd=cluster.parent,
        env=clean_environment(),
        user=None if account is None else account.uid,
        group=None if account is None else account.gid,
        extra_groups=None if account is None else [],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if result.returncode != 0:
        words = " ".join(result.stderr.split()) or "it said nothing"
        raise EmbeddedError(
            f"initdb could not make {cluster}: {words}. "
            "Mend the cause and run the same command again."
        )


def _remove_stale_pid_file(path: Path) -> None:
    """Remove a pid file whose server is gone, even if another process has its number.

    PostgreSQL refuses to start while *any* process of its user has that number, which is usual
    after a container's restart. Our lock is held and our orphans are stopped, so a live server can
    only have been started by hand: then the file stays.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        pid, begun = int(lines[0]), float(lines[2])
        process = psutil.Process(pid)
        same_start = abs(process.create_time() - begun) < CLOCK_TOLERANCE_S
        if not (process.name().startswith("postgres") and same_start):
            path.unlink()
    except FileNotFoundError:
        return
    except (psutil.NoSuchProcess, IndexError, ValueError):
        path.unlink(missing_ok=True)
