"""What one process of many does for all: scans, rescue, retention."""
