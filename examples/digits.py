"""What 1797 handwritten digits have in common: their Gram matrix and a projection, through matmill.

The images of scikit-learn's digits (8 x 8 pixels) are rows of a 1797 x 64 matrix X. The Gram matrix X^T X of the
centred pixels, a sum over all images for each of 64 x 64 outputs and so one for matmill.inner, gives the principal
axes; projected on the first of them, digits of one kind form a cluster.

Run it: python examples/digits.py
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

import matmill

AXES = 10


def main() -> None:
    """Compute, compare with NumPy in float64, and print what came out."""
    digits = load_digits()
    x = (digits.data - digits.data.mean(axis=0)).astype(np.float32)

    gram = matmill.inner(x.T, x)  # the same memory twice: read once, and one half of it computed
    _, vectors = np.linalg.eigh(gram)  # ascending, so the largest come last
    axes = np.ascontiguousarray(vectors[:, : -AXES - 1 : -1])
    points = matmill.matmul(x, axes)

    wide = x.astype(np.float64)
    gram_error = np.abs(gram - wide.T @ wide) / (np.abs(wide).T @ np.abs(wide)).clip(1)
    point_error = np.abs(points - wide @ axes) / (np.abs(wide) @ np.abs(axes)).clip(1)
    worst = max(float(gram_error.max()), float(point_error.max()))
    # Summing k products in float32 errs by at most k units in the last place of the sum of their sizes.
    allowed = len(x) * float(np.finfo(np.float32).eps)
    if not worst <= allowed:
        raise SystemExit(f"matmill and NumPy differ by {worst:.1e}, more than the {allowed:.1e} of rounding")

    kept = float((points.astype(np.float64) ** 2).sum() / (wide**2).sum())
    centres = np.stack([points[digits.target == digit].mean(axis=0) for digit in range(10)])
    # |p - c|^2 without the term that all centres share: c.c - 2 p.c, one product with the last term added.
    distances = matmill.matmul(points, centres.T, c=(centres**2).sum(axis=1), alpha=-2, beta=1)
    right = float((distances.argmin(axis=1) == digits.target).mean())
    print(
        f"Gram matrix {gram.shape[0]} x {gram.shape[1]} of {len(x)} digits, error {worst:.1e} (allowed {allowed:.1e})"
    )
    print(f"{AXES} of {x.shape[1]} axes keep {kept:.0%} of the variance")
    print(f"nearest centre in those axes names {right:.0%} of the digits rightly")


if __name__ == "__main__":
    main()
