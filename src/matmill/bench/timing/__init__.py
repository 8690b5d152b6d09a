"""Times work on the GPU: competitors interleaved, and a copy to compare bandwidths with."""
