"""Calls: checks, the plan cache, and the backends that compute results."""
