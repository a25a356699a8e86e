"""Triage of a model: find the first wrong op of its run, if there is one."""
