"""Plots of results; matplotlib is optional and imported when one is drawn."""
