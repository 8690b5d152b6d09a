"""Times work on the GPU: competitors interleaved, and a copy as the reference for bandwidths."""
