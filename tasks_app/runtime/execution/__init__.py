"""Runs: started, bounded, ended, settled."""
