"""Measuring and comparing: the clock, the libraries to compare with, the probe, and plots."""
