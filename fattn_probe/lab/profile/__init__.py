"""What a kernel does, counted: by Nsight Compute on a GPU, by the simulator while it runs."""
