"""What a run leaves for people: spans of OpenTelemetry, and the lines that its handler logged."""
