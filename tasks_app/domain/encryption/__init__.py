"""Values that are stored encrypted, and the keys for them."""
