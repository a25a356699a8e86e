"""The questions: an op, the scenario it comes from, the GPU it runs on."""

MOST_REPEATS = 100_000
"""Runs of one case: the most that `--repeat` and a suite take."""
