"""How far an output is from the truth, and whether that is within the limits."""
