"""Models: run one with libllama, and record the attention ops of its graphs."""
