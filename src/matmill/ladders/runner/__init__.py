"""Runs a ladder, emulated or on a GPU, and records the results."""
