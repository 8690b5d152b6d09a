"""The transpose+add ladder: D = alpha * X + beta * Y, X transposed, from an article's two kernels to any pitch."""
