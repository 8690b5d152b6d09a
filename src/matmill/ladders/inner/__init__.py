"""The inner ladder: D = alpha * E @ F + beta * C with few outputs and a long k, from the paper's PHVM to one pass."""
