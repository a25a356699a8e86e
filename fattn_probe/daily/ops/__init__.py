"""Run upstream's own test program, `test-backend-ops`, and parse its output."""
