"""Test cases: an op, the scenario that it comes from, and the GPU that it runs on."""

MOST_REPEATS = 100_000
"""The upper limit on the runs of a case, for `--repeat` and for suites."""
