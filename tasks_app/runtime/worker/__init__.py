"""A worker's processes: put together, supervised, shut down."""
