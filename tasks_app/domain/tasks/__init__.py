"""A task: its row, its options, its payload, its states."""
