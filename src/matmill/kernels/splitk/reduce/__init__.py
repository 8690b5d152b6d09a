"""Reduces partial sums to D."""
