"""Contenders: attention kernels that are not from llama.cpp, run on the same cases."""
