"""Shadow memory: the last accesses of every cell, and the screens before it."""
