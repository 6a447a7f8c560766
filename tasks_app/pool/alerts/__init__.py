"""Rows of alerts: opened, closed and sent by compare-and-set."""
