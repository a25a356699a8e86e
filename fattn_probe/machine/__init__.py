"""Runs, and the debugger that looks into them."""
