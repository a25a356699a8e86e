"""Whole CUDA programs, host code and kernels, on a simulated or a real GPU."""
