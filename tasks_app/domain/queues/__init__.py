"""Queues and their time windows."""
