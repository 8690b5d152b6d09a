"""The SGEMM ladder: C = alpha * A @ B + beta * C in float32, from three nested loops to the library's level."""
