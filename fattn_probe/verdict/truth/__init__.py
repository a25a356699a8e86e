"""What a right output is: the exact reference, the model of the kernels' rounding, and the error to expect of it."""
