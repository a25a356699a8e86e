"""The modules of the scripts that only maintainers run; they are not in the wheel."""
