"""What suites execute, and what they would notice."""
