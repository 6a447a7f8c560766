"""What an alert is, and where it may be sent."""
