"""Kernel launches: names, records, kernel families, and how CUDA blocks divide the work."""
