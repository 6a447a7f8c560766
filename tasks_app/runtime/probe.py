"""Asking the database itself whether it answers, for probes: with psycopg alone."""

from __future__ import annotations

import os

import psycopg

from tasks_app.domain.config.unreachable import why_unreachable
from tasks_app.domain.config.urls import read_database_url
from tasks_app.runtime.project import DATABASE_VARIABLE, place

PATIENCE_S = 3


def ask() -> tuple[bool, str]:
    """Tell whether the database that the environment names answers, and why not."""
    try:
        url = read_database_url(os.environ[DATABASE_VARIABLE])
    except ValueError as error:
        return False, f"db: {DATABASE_VARIABLE} is wrong: {error}"
    driverless = f"postgresql://{url.partition('://')[2]}"
    try:
        with psycopg.connect(driverless, connect_timeout=PATIENCE_S, autocommit=True) as connection:
            connection.execute("SELECT 1")
    except psycopg.Error as error:
        return False, f"db: the database {why_unreachable(str(error)).fact}"
    return True, f"db: {place()} answers"
