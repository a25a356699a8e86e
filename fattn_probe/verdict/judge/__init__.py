"""The verdict on an output: by the exact answer, by the kernel's own arithmetic, and by its bits."""
