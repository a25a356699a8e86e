"""Counts of a kernel's operations, from Nsight Compute on a GPU or from the simulator."""
