"""Facts for people: tables, the map of the work, pages."""
