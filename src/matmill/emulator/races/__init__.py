"""The race detector: happens-before over accesses, barriers, copies, releases and acquires.

It does not read PTX text.
"""
