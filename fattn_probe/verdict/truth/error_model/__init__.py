"""The expected error of a correct kernel, from its arithmetic, its launch and the data."""
