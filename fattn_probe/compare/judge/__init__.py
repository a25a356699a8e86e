"""The verdict on an output: by the exact answer, by what its kernel was designed to compute, and by its bits."""
