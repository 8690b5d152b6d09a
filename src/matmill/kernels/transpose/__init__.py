"""Kernels for transpose-add; the three share their tiles, their copies and their cost model."""
