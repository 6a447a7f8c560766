"""The error pool by the fingerprints of its errors."""
