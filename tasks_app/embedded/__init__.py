"""Real PostgreSQL and real Valkey from wheels, in one folder, without Docker, apt or root.

One process owns a folder's servers: ``stack.Stack`` (or ``temporary``, for tests) in your own
process, ``stack.up`` for one in the background. All others call ``folder.read_urls``, which needs
no extra.
"""
