"""Launches every kernel once and checks it: something for profilers and sanitizers to look at.

    python benchmarks/launches.py transpose_add
    compute-sanitizer --tool racecheck python benchmarks/launches.py inner --every 5 --workers 0
    ncu --csv --metrics … python benchmarks/launches.py gemm --ladder sgemm

``gemm`` launches the rungs of the SGEMM and HGEMM ladders and the production products, of which ``--every`` may leave
some out; ``inner`` and ``transpose_add`` the rungs and the production kernels of these. Kernels are compiled by other
processes first (``--workers 0``: by this one, as sanitizers want it). Prints a line per launch. Exits with 1 where a
result is wrong.
"""

from __future__ import annotations

from lab import launches
from lab.gemm.launches import LAUNCHES as GEMM
from lab.inner.launches import LAUNCHES as INNER
from lab.transpose_add.launches import LAUNCHES as TRANSPOSE_ADD

if __name__ == "__main__":
    launches.main({"gemm": GEMM, "inner": INNER, "transpose_add": TRANSPOSE_ADD}, __doc__)
