"""The report of a run: counters and hazards."""
