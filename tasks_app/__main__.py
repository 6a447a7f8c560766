"""``python -m tasks_app`` is ``tasks-app``."""

from __future__ import annotations

from tasks_app.cli.main import main

if __name__ == "__main__":
    main()
