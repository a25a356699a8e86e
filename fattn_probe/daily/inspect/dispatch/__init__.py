"""The dispatch: the conditions in the source, the path that the program took, and the reasons in words."""
