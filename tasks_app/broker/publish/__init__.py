"""Messages: written, sent, and kept for later."""
