"""What only maintainers run: the modules of the scripts, which are not in the wheel."""
