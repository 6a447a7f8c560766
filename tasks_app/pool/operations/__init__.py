"""What operators look at and change: audit, grants, explain, diagnostics."""
