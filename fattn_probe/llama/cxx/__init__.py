"""Readers of CUDA C++ text: tokens, macros, statements, conditions."""
