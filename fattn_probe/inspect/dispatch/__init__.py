"""The dispatch: which conditions the source asks, which way the program went, and why in words."""
