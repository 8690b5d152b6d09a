"""Measures a GPU's own latencies, bandwidths and rates for the cost models."""
