"""Memory: host arrays at virtual addresses, and what a warp's access to them costs. Knows no PTX."""
