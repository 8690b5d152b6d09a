"""Launches on a GPU: the driver, device memory, launches in the driver's format, and buffers per stream."""
