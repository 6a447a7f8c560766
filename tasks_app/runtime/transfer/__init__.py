"""Waiting tasks to a file, and from a file into another database; killed anywhere, none is lost."""
