"""The questions: an op, the scenario it comes from, the GPU it runs on."""

MOST_REPEATS = 100_000
"""The largest number of runs of a case that `--repeat` and a suite allow."""
