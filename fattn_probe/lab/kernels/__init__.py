"""Contenders: attention kernels from other sources than llama.cpp, run on the same cases."""
