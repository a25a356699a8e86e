"""Decides whether an output is correct, and if not, why."""
