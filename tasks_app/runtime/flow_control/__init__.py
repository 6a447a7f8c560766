"""Which claimed tasks may start now."""
