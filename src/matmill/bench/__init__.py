"""Measuring and comparing: the clock, the baselines, the ladder runner, and the reports made of what they find."""
