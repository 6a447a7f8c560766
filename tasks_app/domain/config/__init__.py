"""Settings and URLs: read, checked, and shown without their secrets."""
