"""Pages that are written from the code: ``make docs``. A test says when one in git is stale."""
