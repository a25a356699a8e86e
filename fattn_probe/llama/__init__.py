"""The tree of llama.cpp, and what is made of it."""
