"""Runs a program: registers and shared memory of some thread blocks, their warps, and their accesses."""
