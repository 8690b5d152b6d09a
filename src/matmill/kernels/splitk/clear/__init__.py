"""Sets sums to zero."""
