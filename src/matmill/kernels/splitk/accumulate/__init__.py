"""Partial sums added to running totals."""
