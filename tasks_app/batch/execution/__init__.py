"""A run of a partition: from a started task to the last chunk."""
