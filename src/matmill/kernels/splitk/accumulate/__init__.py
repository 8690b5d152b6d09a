"""Adds partial sums to running totals."""
