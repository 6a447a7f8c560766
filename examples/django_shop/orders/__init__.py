"""Orders and the points that they earn."""
