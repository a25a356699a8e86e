"""Show facts: tables, the map of the work, pages."""
