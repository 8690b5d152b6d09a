"""What a run reports: counters and hazards."""
