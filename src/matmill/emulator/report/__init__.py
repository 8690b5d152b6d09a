"""What a run tells its user: counters and hazards."""
