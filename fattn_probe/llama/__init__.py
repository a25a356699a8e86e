"""llama.cpp's source tree, and the builds made from it."""
