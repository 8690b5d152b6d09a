"""The HGEMM ladder: D = alpha * A @ B + beta * C on the tensor cores, from tiles at three levels to any size."""
