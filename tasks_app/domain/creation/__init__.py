"""From what a producer gives to a checked row."""
