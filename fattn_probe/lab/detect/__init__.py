"""Measure the code that suites execute, and the faults that they would detect."""
