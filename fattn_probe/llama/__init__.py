"""The tree of llama.cpp, and the builds made from it."""
