"""Matrix kernels in CUDA C++ that run on a GPU, run as their own PTX without one, and explain their speed."""
