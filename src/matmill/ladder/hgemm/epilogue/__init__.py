"""Results go through shared memory and leave in whole rows."""

from __future__ import annotations

from matmill.kernel import Rung
from matmill.ladder.documents import OURS
from matmill.ladder.hgemm.pipelined import any_kernel, largest_tile
from matmill.problem import Gemm

EPILOGUE: Rung[Gemm] = Rung(
    name="epilogue",
    source=OURS,
    changes="A warp stages 16 rows of its sums in shared memory and writes them in rows of 128 bytes, 16 bytes "
    "per lane; C is read the same way.",
    predicts="4 store requests for 16 rows of 64 columns instead of 32, and whole sectors only. It is a small part of "
    "a large product: at 8192 less than 1%, at 1024 several.",
    kernel=any_kernel("epilogue", __name__),
    tune=largest_tile,
)
