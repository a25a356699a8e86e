"""Attention algorithms in NumPy, next to the papers: traced tile by tile, with slow-memory traffic counted."""
