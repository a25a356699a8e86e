"""Procedures that run in the debugger's Python or over MI, and use only the standard library and `Debugger`."""
