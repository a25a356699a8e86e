"""Pictures: one model (`marks`), drawn as SVG (`svg`), in a terminal (`characters`) or by matplotlib (`plot`)."""
