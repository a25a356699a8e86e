"""What a kernel launch says: names, records, families, the division of work among CUDA blocks."""
