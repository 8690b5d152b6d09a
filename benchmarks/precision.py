"""Errors of products of bfloat16 with sums on tensor cores alone and with promoted sums, in the emulator.

    python benchmarks/precision.py

Prints the table of docs/precision.md: the mean and the largest error of the elements of 64 x 64 products in float32, in
units of 2^-24 of the sum of the sizes of their terms. Numbers are uniform in [-1, 1) or in [0, 1), seed 0.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

import matmill

SIDE, LENGTHS = 64, (256, 1024, 4096)
#: Names of the ranges, and their least numbers.
RANGES = {"either sign": -1.0, "positive": 0.0}


def errors(k: int, least: float, precision: str) -> tuple[float, float]:
    """Return mean and largest error, signed toward zero where negative, over the sizes of terms, in units of 2^-24."""
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(least, 1, shape).astype(ml_dtypes.bfloat16) for shape in ((SIDE, k), (k, SIDE)))
    result = matmill.matmul(a, b, out_dtype="float32", precision=precision, executor="emulator")
    wide = a.astype(np.float64), b.astype(np.float64)
    exact, sizes = wide[0] @ wide[1], np.abs(wide[0]) @ np.abs(wide[1])
    units = (result - exact) * np.sign(exact) / sizes * 2.0**24
    return float(units.mean()), float(np.abs(units).max())


def main() -> None:
    """Print the table."""
    print("| k | numbers | default: mean, largest | high: mean, largest |\n|---|---|---|---|")
    for k in LENGTHS:
        for name, least in RANGES.items():
            cells = ("{:.3f}, {:.3f}".format(*errors(k, least, precision)) for precision in ("default", "high"))
            print(f"| {k} | {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
