"""Run cases on an engine: case file, native runner, outcome, launch records, capture."""
