"""What people type to learn, and to measure the tests."""
