"""The correct output: the exact reference, the rounding model of the kernels, and the expected error."""
