"""Regression runs: find what has changed since the last accepted run, on any GPU."""
