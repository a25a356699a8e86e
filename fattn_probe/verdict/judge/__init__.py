"""The verdict on an output, from the exact answer, the kernel's own arithmetic, and its bits."""
