"""Parts that several statements share."""
