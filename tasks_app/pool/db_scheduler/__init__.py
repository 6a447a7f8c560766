"""The database as scheduler: functions that pg_cron, or anybody, calls; and pg_cron's jobs."""
