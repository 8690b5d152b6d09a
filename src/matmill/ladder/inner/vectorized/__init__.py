"""One pass with 16-byte loads along k, several in flight per thread."""

from __future__ import annotations

from matmill.kernel import Rung
from matmill.ladder.documents import OURS
from matmill.ladder.inner.common import atomic_kernel, fixed_size_arguments
from matmill.ladder.inner.vectors import DEFAULT, tune, wide_loads
from matmill.problem import Gemm

VECTORIZED: Rung[Gemm] = Rung(
    name="vectorized",
    source=OURS,
    changes="A thread takes 16 bytes along k of each of its rows and columns at a time, and loads up to 16 such "
    "vectors before it uses the first. A row-major F whose rows are packed is one run of memory and is read as such.",
    predicts="4 times fewer load instructions in float32, 2 in float64, 8 in 16-bit types, for the same bytes: "
    "2 / (4 m) loads per FMA. Up to 256 bytes in flight per thread, 64 KiB per SM with 256 threads where "
    "Little's law asks for 25. Bandwidth is then the limit up to 28 FMAs per element, m * n / (m + n), which "
    "is 55 rows and columns of float32 at 33.5 T FMAs and 1.2 T elements per second. Rows not aligned to "
    "16 bytes (odd k) fall back to narrower loads of the same cache lines, which L1 must merge.",
    kernel=atomic_kernel("vectorized", __name__, DEFAULT, fixed_size_arguments, wide_loads),
    tune=tune,
)
