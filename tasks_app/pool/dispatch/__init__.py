"""From due rows to published ids: scans, the ledger of what was published."""
