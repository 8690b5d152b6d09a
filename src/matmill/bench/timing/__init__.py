"""Times a copy on the GPU, the reference for bandwidths."""
