"""What a release needs beside a green suite: ``make release-check`` and ``make release``.

It imports nothing of tasks_app: what it runs was built from the checkout, and is installed as
users install it.
"""
