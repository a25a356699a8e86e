"""Tests and inspects llama.cpp's CUDA flash-attention kernels."""
