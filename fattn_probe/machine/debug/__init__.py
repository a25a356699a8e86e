"""Debugger sessions: gdb and cuda-gdb, driven from outside over MI, or from inside through their Python."""
