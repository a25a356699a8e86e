"""Judgements and differences as tables, error maps, plots and JSON."""
