"""Limits, order, fair shares, circuit breakers: who may start when."""
