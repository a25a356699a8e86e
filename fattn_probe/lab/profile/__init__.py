"""Counts of a kernel's operations, by Nsight Compute on a GPU, or by the simulator."""
