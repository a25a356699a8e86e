"""Commands for studying attention kernels, and for measuring the tests."""
