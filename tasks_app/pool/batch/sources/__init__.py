"""What batches ask of users' tables.

Names of users' tables and columns are quoted, values bound: the statements are SQLAlchemy's.
"""
