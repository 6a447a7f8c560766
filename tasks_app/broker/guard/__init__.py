"""Which messages a worker takes."""
