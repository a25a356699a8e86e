"""The correct output: the exact reference, the model of the kernels' rounding, and the expected error."""
