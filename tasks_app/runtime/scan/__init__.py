"""Where scans read the due rows, and what they make of them."""
