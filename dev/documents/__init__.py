"""Pages that are written from the code: ``make docs``. A test of each says that it is current."""
