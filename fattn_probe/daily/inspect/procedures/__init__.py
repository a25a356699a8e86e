"""Procedures that run in the debugger's Python or over MI; they use only the standard library and the protocol."""
