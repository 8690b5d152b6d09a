"""From a call to its launch: checks, the plan cache, and the backends that compute results."""
