"""D of partial sums."""
