"""Traces: what a task does, as spans of OpenTelemetry, if the process has loaded it."""
