"""`doctor`: the tools of this machine, those that are missing, and the engines that work."""
