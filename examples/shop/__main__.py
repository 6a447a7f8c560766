"""``python -m shop``: the demo, whatever the environment says of other databases."""

from __future__ import annotations

import os
import signal

signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the demo listens: no traceback from an import

# The demo works on its own servers only; a variable of ours or of libpq must not lead it away.
for _name in [name for name in os.environ if name.startswith(("TASKS_APP_", "CELERY_", "PG"))]:
    del os.environ[_name]

from shop.demo import main  # noqa: E402  tasks_app reads the environment when it is imported

if __name__ == "__main__":
    main(prog_name="tasks-app demo")
