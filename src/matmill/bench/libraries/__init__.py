"""The libraries to compare with: torch, CuPy, Triton and BLAS on the CPU."""
