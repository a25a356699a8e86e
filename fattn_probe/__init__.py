"""The microscope and the tripwire for llama.cpp's CUDA flash-attention kernels."""
