"""The commands for everyday use."""
