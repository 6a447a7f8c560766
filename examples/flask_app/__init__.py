"""An order service with Flask and Flask-SQLAlchemy."""
