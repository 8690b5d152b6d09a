"""Times the configurations of an operation's kernels on a grid of problems: what its cost model is fitted on.

    python benchmarks/search.py inner --out benchmarks/results/inner_search_h200_fit.jsonl --part fit --seconds 500
    python benchmarks/search.py transpose_add --out benchmarks/results/transpose_add_search_h200.jsonl --seconds 300

``inner`` goes through two grids of products, one to fit on and one to judge by; ``--mma`` takes those alone that tensor
cores can multiply. ``transpose_add`` goes through every element type and alignment at a few sizes, the article's first,
or with ``--slim`` through matrices with one short side and batches of small matrices, which belong in a record of their
own; each of its configurations is checked to the bit, of ``inner`` the model's choice.

Needs a GPU and torch, but for ``--compile-only``, which fills the cache of compiled kernels for ``--arch`` and stops.
Stops by itself when ``--seconds`` are over, with all that was measured in the file; the same command then goes on where
it stopped. Kernels are compiled by other processes meanwhile. Ends with 1 where a result is wrong.
"""

from __future__ import annotations

from lab import search
from lab.inner.search import SEARCH as INNER
from lab.transpose_add.search import SEARCH as TRANSPOSE_ADD

if __name__ == "__main__":
    search.main({"inner": INNER, "transpose_add": TRANSPOSE_ADD}, __doc__)
