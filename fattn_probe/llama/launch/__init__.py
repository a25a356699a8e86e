"""Kernel launches: names, records, kernel families, and the division of work among CUDA blocks."""
