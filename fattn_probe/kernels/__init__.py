"""Attention kernels of others, to be compared with llama.cpp's on the same inputs."""
