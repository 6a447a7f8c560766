"""Pictures of the dashboard: a shop on real servers with real workers, seen by a real browser."""
