"""The state of one batch of thread blocks."""
