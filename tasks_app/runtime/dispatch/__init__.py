"""Beat's scans publish what is due, in messages of the right size."""
