"""Triage of a model: finds the op of its run that is wrong, if any."""
