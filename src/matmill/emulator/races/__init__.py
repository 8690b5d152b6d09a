"""The race detector: happens-before over accesses, barriers, copies, releases and acquires. Knows no PTX text."""
