"""What is done in the debugger, by its own Python or over MI: the standard library and the debugger protocol alone."""
