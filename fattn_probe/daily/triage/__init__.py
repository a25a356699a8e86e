"""Triage of a model: which op of its run is wrong, or that none is."""
