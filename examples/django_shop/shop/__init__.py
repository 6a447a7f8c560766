"""A Django project whose orders earn points."""
