"""``python -m dev.budget``: print the lines of each room, and fail where one passes its budget.

The budgets stand in ``dev/budget.toml``. A commit that raises one says why.
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from pathlib import Path

PRODUCT = Path(__file__).parents[1] / "tasks_app"
BUDGET = Path(__file__).with_name("budget.toml")


def lines_by_room(product: Path = PRODUCT) -> tuple[Counter[str], Counter[str]]:
    """Return lines and files of each room: a folder of a floor, or the floor's own files."""
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for file in product.rglob("*.py"):
        room = "/".join(file.relative_to(product).parts[:-1][:2]) or "."
        lines[room] += len(file.read_text().splitlines())
        files[room] += 1
    return lines, files


def main() -> int:
    lines, files = lines_by_room()
    budget: dict[str, int] = tomllib.loads(BUDGET.read_text())["lines"]
    for room in sorted({*lines, *budget}):
        over = lines[room] > budget.get(room, 0)
        print(
            f"{room:24} {files[room]:4} files {lines[room]:6} lines of {budget.get(room, 0):6}"
            f"{'  OVER ITS BUDGET' if over else ''}"
        )
    print(f"{'all':24} {files.total():4} files {lines.total():6} lines of {sum(budget.values()):6}")
    over_budget = [room for room in lines if lines[room] > budget.get(room, 0)]
    gone = [room for room in budget if room not in lines]
    if over_budget or gone:
        print(f"Make them shorter, or change {BUDGET.name} and say why: {over_budget + gone}")
    return 1 if over_budget or gone else 0


if __name__ == "__main__":
    sys.exit(main())
