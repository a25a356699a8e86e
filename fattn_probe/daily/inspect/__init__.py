"""Inspect a running flash-attention op: its tensors, kernel choice, tiling and accumulators."""
