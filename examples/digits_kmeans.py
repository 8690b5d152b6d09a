"""k-means on 1797 handwritten digits: products of a few centres with long matrices, through matmill.

The images of scikit-learn's digits (8 x 8 pixels) are rows of a matrix X. Each round of Lloyd's algorithm needs two
products: distances from |x - c|^2 = x.x - 2 x.c + c.c, a product of X with the few centres; and the new centres, which
are sums of the images of each group: H^T X with H[i, j] = 1 where image i is in group j, a sum over all images for each
of 10 x 64 outputs, which is what matmill.inner is for. The same rounds by NumPy must give the same groups.

Run it: python examples/digits_kmeans.py
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

import matmill

Matrix = NDArray[np.float64]
Product = Callable[[Matrix, Matrix], Matrix]

GROUPS = 10
#: Both sides round differently, and a sum of as many terms as there are images errs by at most as many of these.
EPS = float(np.finfo(np.float64).eps)


def k_means(x: Matrix, rounds: int, times: Product, inner: Product) -> tuple[NDArray[np.intp], Matrix]:
    """Give groups and centres after Lloyd's algorithm from the first images as centres, for at most so many rounds."""
    centres = x[:GROUPS].copy()
    groups = np.full(len(x), -1)
    for _ in range(rounds):
        distances = (centres**2).sum(axis=1) - 2 * times(x, centres.T)  # less |x|^2, which is the same for all centres
        nearest = distances.argmin(axis=1)
        if (nearest == groups).all():
            break
        groups = nearest
        members = np.eye(GROUPS)[groups]
        centres = inner(members.T, x) / members.sum(axis=0)[:, None].clip(1)
    return groups, centres


def main() -> None:
    """Group the digits by matmill and by NumPy, compare, and print what came out."""
    parser = argparse.ArgumentParser(description="k-means on handwritten digits, through matmill")
    parser.add_argument("--images", type=int, help="take this many images alone")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--executor", help="where the products run (default: the GPU, if there is one, else the CPU)")
    args = parser.parse_args()
    digits: Any = load_digits()
    x: Matrix = digits.data[: args.images].astype(np.float64)
    target = digits.target[: args.images]

    def times(a: Matrix, b: Matrix) -> Matrix:
        product: Matrix = matmill.matmul(a, b, executor=args.executor)
        return product

    def inner(e: Matrix, f: Matrix) -> Matrix:
        product: Matrix = matmill.inner(e, f, executor=args.executor)
        return product

    groups, centres = k_means(x, args.rounds, times, inner)
    expected_groups, expected = k_means(x, args.rounds, np.matmul, np.matmul)
    if not (groups == expected_groups).all():
        raise SystemExit(f"matmill and NumPy group {int((groups != expected_groups).sum())} images differently")
    worst = float(np.abs(centres - expected).max() / np.abs(expected).max())
    if not worst <= len(x) * EPS:
        raise SystemExit(f"centres differ by {worst:.1e}, more than the {len(x) * EPS:.1e} of rounding")

    # How alike the centres are: a Gram matrix, of which only one half is computed.
    unit = centres / np.linalg.norm(centres, axis=1, keepdims=True).clip(EPS)
    alike = inner(unit, unit.T) - np.eye(GROUPS)
    named = sum(int(np.bincount(target[groups == group]).max()) for group in range(GROUPS) if (groups == group).any())
    print(f"{len(x)} digits in {GROUPS} groups, the same as NumPy's; centres differ by {worst:.1e}")
    print(f"the two most alike centres have a cosine of {float(alike.max()):.2f}")
    print(f"naming each group after its most frequent digit names {named / len(x):.0%} rightly")


if __name__ == "__main__":
    main()
