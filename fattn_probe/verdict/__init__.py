"""Whether an output is right, and if not, why."""
