"""What a handler is, and what its end means for its task."""
