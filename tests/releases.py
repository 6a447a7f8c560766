"""Code of other versions, in folders that PYTHONPATH can name: the last release's, and the next."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

from tasks_app.pool.schema import newest

PROJECT = Path(__file__).parents[1]
NO_RELEASE = "The last release is not tested"
NO_INDEX = "No package index answers: older versions, or the site, are not tested"
NO_PEER = "A system that a guide leads away from is not tested"
CODE = ("tasks_app", "migrations")
BETWEEN, NEXT = "9998", "9999"
"""The next release has two migrations more: one that alters tables, one that builds an index."""
_ROW = re.compile(r"^\| (?P<release>\d[^|]*) \| `(?P<commit>[0-9a-f]{40})` \|", re.MULTILINE)
_COLUMN = '''"""What a next release may change: columns of all pools, a rule, a table."""

from alembic import op

revision = "{revision}"
down_revision = "{before}"
OLDEST_CODE = "{oldest}"


def upgrade():
    for pool in ("task_pending", "task_completed", "task_error"):
        op.execute(f"ALTER TABLE {{pool}} ADD COLUMN colour text")
    op.execute(
        "ALTER TABLE task_pending ADD CONSTRAINT colour_is_short"
        " CHECK (length(colour) < 20) NOT VALID"
    )
    op.execute("CREATE TABLE task_colour (name text PRIMARY KEY)")
'''
_INDEX = '''"""And an index."""

from tasks_app.pool.schema import build_index

revision = "{revision}"
down_revision = "{before}"
OLDEST_CODE = "{oldest}"


def upgrade():
    build_index("task_pending_colour", "task_pending", "(colour) WHERE colour IS NOT NULL")
'''


def last_release() -> str:
    """Return the commit of the last release, as docs/releases.md names it."""
    found = _ROW.search((PROJECT / "docs" / "releases.md").read_text())
    assert found, "docs/releases.md names no commit"
    return found["commit"]


def code_of(commit: str, folder: Path) -> Path | None:
    """Unpack the code of a commit; None: there is no git here, or not that commit."""
    try:
        done = subprocess.run(
            ["git", "-C", PROJECT, "archive", commit, *CODE], capture_output=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        # Python 3.11 has filters from 3.11.4 on.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)
    return folder


def next_release(folder: Path, oldest: str) -> Path:
    """Make code like this one's that has two migrations more."""
    for name in CODE:
        shutil.copytree(PROJECT / name, folder / name)
    versions = folder / "migrations" / "versions"
    for revision, before, code in ((BETWEEN, newest(), _COLUMN), (NEXT, BETWEEN, _INDEX)):
        (versions / f"{revision}_colours.py").write_text(
            code.format(revision=revision, before=before, oldest=oldest)
        )
    return folder
