"""Launches on a GPU: the driver, device memory, launches in the driver's format, buffers per stream, and a clock."""
