"""Inspection: what a flash-attention op's tensors, kernel choice, tiling and accumulators are while it runs."""
