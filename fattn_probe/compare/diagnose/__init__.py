"""What is wrong with an output: where, which CUDA blocks made it, and by which fault."""
