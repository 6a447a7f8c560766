"""The documentation as a web site: ``make site``. Sphinx reads the Markdown where it lies."""
