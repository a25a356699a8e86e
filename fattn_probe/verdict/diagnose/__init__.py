"""Diagnose a wrong output: the wrong elements, the CUDA blocks that computed them, and the fault."""
