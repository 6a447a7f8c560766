"""Hints without a broker: PostgreSQL's NOTIFY carries them."""
