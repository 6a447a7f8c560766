"""What is wrong now, out of the checks of ``doctor``."""
