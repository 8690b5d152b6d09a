"""Teaching kernels: one folder per ladder. Each rung adds one idea to the one before."""
