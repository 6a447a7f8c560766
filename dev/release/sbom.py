"""The bill of materials: CycloneDX, of all that the wheel with all extras brings."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from dev.release.archives import contents
from dev.release.environment import Environment
from dev.release.licences import Vendored, vendored

_SPEC = "1.6"


def write(environment: Environment, checkout: Path, wheel: Path, target: Path) -> int:
    """Write it as JSON that is valid by CycloneDX's schema; return how many components it has.

    No serial number and no moment: the same packages make the same file.
    """
    made = subprocess.run(
        [
            Path(sys.executable).parent / "cyclonedx-py",
            "environment",
            "--pyproject",
            checkout / "pyproject.toml",
            "--mc-type",
            "library",
            "--spec-version",
            _SPEC,
            "--output-reproducible",
            environment.bin / "python",
        ],
        check=True,
        capture_output=True,
    )
    bill: dict[str, Any] = json.loads(made.stdout)
    bill["components"] += [_component(each) for each in vendored(contents(wheel))]
    words = json.dumps(bill, indent=1)
    _validate(words)
    target.write_text(words + "\n")
    return len(bill["components"])


def _component(file: Vendored) -> dict[str, Any]:
    purl = f"pkg:npm/{file.package}@{file.version}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": file.package,
        "version": file.version,
        "purl": purl,
        "licenses": [{"license": {"id": file.licence}}],
        "hashes": [{"alg": "SHA-256", "content": file.sha256}],
    }


def _validate(words: str) -> None:
    from cyclonedx.schema import SchemaVersion  # noqa: PLC0415 - only `make release-check` has it
    from cyclonedx.validation.json import JsonStrictValidator  # noqa: PLC0415

    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(words)
    if error is not None:
        message = f"the bill of materials is no CycloneDX {_SPEC}: {error}"
        raise ValueError(message)
