"""An app of a Django project."""
