"""The algorithms of attention to study: NumPy beside the papers, traced tile by tile, slow memory counted."""
