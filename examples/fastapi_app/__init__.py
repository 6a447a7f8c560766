"""An order service with FastAPI: asyncpg reads, psycopg writes orders and their tasks."""
