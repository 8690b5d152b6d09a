"""Shadow memory: the last accesses of every cell, and what screens them."""
