"""What a user would pick instead of our kernels: torch, CuPy, Triton and BLAS on the CPU."""
