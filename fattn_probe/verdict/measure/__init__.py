"""Measure how far an output is from the truth, and whether it is within the limits."""
