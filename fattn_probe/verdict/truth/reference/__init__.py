"""The reference: exact attention in float64."""
