"""PCA and least squares of a float32 array on disk that need not fit memory, through matmill and Dask.

Each row has 15 features, made of 4 hidden factors and noise, and a target that is linear in them. One pass over the
file gives the Gram matrix of all columns and a column of ones, 17 x 17, and that is enough for both: means, covariances
with their principal axes, and the coefficients of the target. Each worker holds one block of 64 MiB, a copy of it, and
small sums, whatever the length of the file.

Run it: python examples/rows_on_disk.py, with two worker processes; --rows 2e8 is the size of its docstring's promise,
12.8 GB.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

try:
    from distributed import Client, LocalCluster, progress
except ModuleNotFoundError:
    raise SystemExit("This needs Dask and its workers: pip install 'dask[array,distributed]>=2025.1'") from None

import matmill.dask

FEATURES, FACTORS, WRITTEN = 15, 4, 1 << 20
Array = NDArray[Any]


def main() -> None:
    """Write the file where there is none, compute, compare with what the file was made of."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, default=2e5, help="of the file, if it is written (default: 2e5)")
    parser.add_argument("--file", type=Path, help="a .npy file to keep, or to read again (default: a temporary one)")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: 2)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = args.file or Path(folder) / "rows.npy"
        if not file.exists():
            write(file, int(args.rows))
        with (
            LocalCluster(n_workers=args.workers, threads_per_worker=1, dashboard_address=None) as cluster,
            Client(cluster) as client,
        ):
            started = time.perf_counter()
            rows, shift, gram = gram_of(file, client)
            seconds = time.perf_counter() - started
            peak = max(client.run(peak_bytes).values())
    covariance, means = moments(gram, rows, shift)
    shares = np.linalg.eigvalsh(covariance[:-1, :-1])[::-1] / np.trace(covariance[:-1, :-1])
    found = np.linalg.solve(covariance[:-1, :-1], covariance[:-1, -1])
    _, _, made, offset = recipe()
    error = float(np.abs(found - made).max())
    print(f"\n{rows} rows, {rows * (FEATURES + 1) * 4 / 1e9:.3g} GB, {seconds:.1f} s on {args.workers} workers")
    print(f"most memory of a worker: {peak / 2**20:.0f} MiB")
    print(f"{FACTORS} of {FEATURES} axes keep {shares[:FACTORS].sum():.1%} of the variance")
    print(f"coefficients within {error:.1e} of those the file was made with")
    intercept = means[-1] - means[:-1] @ found
    # The noise of the target is 0.1: a coefficient errs by about that over the root of the rows and a feature's own.
    if not error < 2 / rows**0.5 + 1e-4 or not abs(intercept - offset) < 20 / rows**0.5 + 1e-3:
        raise SystemExit("the coefficients are further off than noise explains")


def recipe() -> tuple[Array, Array, Array, float]:
    """Return what every file is made of: how factors mix, means of features, coefficients, and the target's offset."""
    random = np.random.default_rng(16)
    mixing = random.normal(size=(FACTORS, FEATURES))
    return mixing, random.uniform(-3, 3, FEATURES), random.uniform(-1, 1, FEATURES), 7.0


def write(file: Path, rows: int) -> None:
    """Write the file, a million rows at a time."""
    mixing, means, coefficients, offset = recipe()
    random = np.random.default_rng(0)
    with file.open("wb") as to:
        header = {"descr": "<f4", "fortran_order": False, "shape": (rows, FEATURES + 1)}
        np.lib.format.write_array_header_1_0(to, header)
        for start in range(0, rows, WRITTEN):
            count = min(WRITTEN, rows - start)
            block = np.empty((count, FEATURES + 1), np.float32)
            noise = 0.3 * random.standard_normal((count, FEATURES), np.float32)
            block[:, :-1] = random.standard_normal((count, FACTORS), np.float32) @ mixing.astype(np.float32) + noise
            block[:, :-1] += means.astype(np.float32)
            block[:, -1] = block[:, :-1] @ coefficients.astype(np.float32) + offset
            block[:, -1] += 0.1 * random.standard_normal(count, np.float32)
            block.tofile(to)


def gram_of(file: Path, client: Client) -> tuple[int, Array, Array]:
    """Return rows, what was subtracted of each column, and the Gram matrix of the columns with ones beside them."""
    x = matmill.dask.from_npy(file)
    # Near the means, so that the differences of large numbers below lose nothing: those of the first rows.
    shift = x[:1000].mean(axis=0).compute()

    def with_ones(block: Array) -> Array:
        return np.concatenate([block - shift, np.ones((len(block), 1), np.float32)], axis=1)

    columns = x.shape[1] + 1
    beside = x.map_blocks(with_ones, chunks=(x.chunks[0], (columns,)), dtype=x.dtype, meta=np.empty((0, 0), x.dtype))
    pending = client.compute(matmill.dask.gram(beside))
    progress(pending)
    return x.shape[0], shift.astype(np.float64), pending.result().astype(np.float64)


def moments(gram: Array, rows: int, shift: Array) -> tuple[Array, Array]:
    """Return covariances and means of all columns."""
    sums = gram[-1, :-1]
    return (gram[:-1, :-1] - np.outer(sums, sums) / rows) / (rows - 1), sums / rows + shift


def peak_bytes() -> int:
    """Return the most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
