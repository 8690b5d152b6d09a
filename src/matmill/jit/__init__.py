"""A kernel and its constants to machine code or PTX: source, NVRTC, and the cache on disk."""
