"""The distance of an output from the truth, and whether it is within the limits."""
