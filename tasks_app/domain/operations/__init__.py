"""What operators request."""
