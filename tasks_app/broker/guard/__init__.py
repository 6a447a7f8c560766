"""Which messages a worker accepts."""
