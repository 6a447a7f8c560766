"""Migrations of the shop."""
