"""Builds: a llama.cpp tree as the runner of one engine."""
