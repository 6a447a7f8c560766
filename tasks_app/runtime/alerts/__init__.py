"""Sending of alerts."""
