"""The exact answer: attention in float64, to hold a kernel's output against."""
