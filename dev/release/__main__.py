"""``python -m dev.release check`` and ``python -m dev.release version 0.2.0``."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dev.release import archives, hello, licences, sbom, version
from dev.release.environment import Environment, told

CHECKOUT = Path(__file__).parents[2]
DIST = CHECKOUT / "dist"


def check() -> Iterator[str]:
    """Build, look into, install and run the package; yield what is wrong, one line each."""
    built = archives.build(CHECKOUT, DIST)
    for archive in built:
        print(f"{archive.name}: {archive.stat().st_size // 1024} kB", flush=True)
        yield from archives.findings(archive, archives.own_words(CHECKOUT))
    yield from archives.metadata_findings(built)
    wheel, sdist = built
    yield from licences.vendored_findings(wheel)
    with tempfile.TemporaryDirectory() as folder:
        yield from hello.findings(wheel, sdist, Path(folder))
        everything = Environment(Path(folder) / "everything", wheel, hello.EXTRAS)
        yield from licences.findings(everything.licences())
        bill = DIST / f"{wheel.stem.split('-py3')[0]}.cdx.json"
        count = sbom.write(everything, CHECKOUT, wheel, bill)
        print(f"{bill.name}: {count} components")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m dev.release", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="build the package and try it as users do")
    named = commands.add_parser("version", help="give the changelog and the package a version")
    named.add_argument("version", help="such as 0.2.0")
    arguments = parser.parse_args()
    if arguments.command == "version":
        try:
            print(version.give(CHECKOUT, arguments.version))
        except version.RefusedError as refused:
            print(refused, file=sys.stderr)
            return 2
        return 0
    try:
        found = list(check())
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as failed:
        found = [told(failed)]
    for line in found:
        print(f"WRONG: {line}", file=sys.stderr)
    print(f"{len(found)} things are wrong." if found else "Ready for a release.")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
