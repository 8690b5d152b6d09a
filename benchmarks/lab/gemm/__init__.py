"""GEMM: the records of its tiles, and its launches."""
