"""Attention algorithms in NumPy, as in the papers: traced tile by tile, with slow-memory traffic counted."""
