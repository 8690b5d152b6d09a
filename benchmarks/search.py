"""Times the configurations of transpose_add's kernels on a grid of shapes: what its cost model is fitted on.

    python benchmarks/search.py --out benchmarks/results/transpose_add_search_h200.jsonl --seconds 300

Goes through every element type and alignment at a few sizes, the article's first, or with ``--slim`` through matrices
with one short side and batches of small matrices, which belong in a record of their own. Each configuration is checked
to the bit. ``shapes.py --every ENTRY`` does the same for a kernel of products.

Needs a GPU and torch, but for ``--compile-only``, which fills the cache of compiled kernels for ``--arch`` and stops.
Stops by itself when ``--seconds`` are over, with all that was measured in the file; the same command then goes on where
it stopped. Kernels are compiled by other processes meanwhile. Ends with 1 where a result is wrong.
"""

from __future__ import annotations

from lab.transpose_add.search import main

if __name__ == "__main__":
    main(__doc__)
