"""Commands to learn, and to measure the tests."""
