"""A kernel's output against the exact answer, or against another output: metrics, verdict, table."""
