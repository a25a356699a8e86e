"""The dispatch: the conditions in the source, the path of the program, and the reasons in words."""
