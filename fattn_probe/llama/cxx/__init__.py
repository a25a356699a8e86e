"""Readers for CUDA C++ text: tokens, macros, functions, statements, conditions."""
