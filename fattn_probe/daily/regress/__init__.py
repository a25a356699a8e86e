"""Regression runs: what changed since the last accepted llama.cpp, on any GPU."""
