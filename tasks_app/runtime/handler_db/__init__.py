"""Connections as handlers have them: one object a run, dead when the run is over."""
