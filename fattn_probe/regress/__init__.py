"""Regression: what changed since the last good llama.cpp, on any GPU."""
