"""Running a program: register files and shared memory of some thread blocks, their warps, and the accesses they make."""
