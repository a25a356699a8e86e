"""Run cases, and inspect runs with a debugger."""
