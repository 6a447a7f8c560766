"""Batches in SQL: the partition repository, and what planners ask of users' tables.

Names of users' tables and columns are quoted, values bound: their statements are SQLAlchemy's.
"""
