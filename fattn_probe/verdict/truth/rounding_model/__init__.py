"""NumPy models of the attention kernels that round where the kernels round; see `dispatch.model_of`."""
