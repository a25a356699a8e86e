"""Attention kernels other than llama.cpp's, run on the same cases: contenders."""
