"""``python -m shop``: the demo, whatever databases the environment names."""

from __future__ import annotations

import os
import signal
import sys

signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the demo listens: no traceback from an import

# The demo works on its own servers only; a variable of ours or of libpq must not lead it away.
for _name in [name for name in os.environ if name.startswith(("TASKS_APP_", "CELERY_", "PG"))]:
    del os.environ[_name]

try:
    from shop.demo import main  # tasks_app reads the environment when it is imported
except ModuleNotFoundError as error:
    sys.exit(f'The demo needs {error.name}. Run: pip install "tasks_app[demo]"')

if __name__ == "__main__":
    main(prog_name="tasks-app demo")
