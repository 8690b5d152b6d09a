"""Lessons on why one kernel is faster than another, and the check of their exercises without a GPU."""
