"""Compare a kernel's output with the exact answer, or with another output: metrics, verdict, tables."""
