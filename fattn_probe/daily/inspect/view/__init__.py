"""Show facts: as tables, as a map of the work, and as pages."""
