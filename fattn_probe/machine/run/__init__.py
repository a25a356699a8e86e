"""Run one case on one engine: case file, native runner, outcome, launch records, capture."""
