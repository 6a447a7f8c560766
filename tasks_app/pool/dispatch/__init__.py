"""From due rows to published ids: scans, leases, what is looked at."""
