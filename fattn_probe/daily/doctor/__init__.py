"""`doctor`: the tools that this machine has or lacks, and the engines that work on it."""
