"""Memory: host arrays at virtual addresses, and the cost of a warp's access to them. Independent of PTX."""
