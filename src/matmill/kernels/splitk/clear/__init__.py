"""Sums set to zero."""
