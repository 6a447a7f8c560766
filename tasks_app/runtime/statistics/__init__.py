"""Counters of a process: kept, written, and added up by the leader."""
