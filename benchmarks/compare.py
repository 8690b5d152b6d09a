"""Times matmill on a GPU beside what users have instead, and reading or copying alone, all in one run.

    python benchmarks/compare.py inner --out benchmarks/results --group bandwidth
    python benchmarks/compare.py transpose_add --out benchmarks/results --group article

``inner`` is ``matmill.inner`` beside torch.mm, torch.einsum and CuPy. ``transpose_add`` is ``matmill.transpose_add``
beside torch, its compiler, Triton and CuPy: its group ``article`` is the article's shape beside all libraries, and what
a call on small matrices costs the host; ``shapes`` are forty others beside torch, eager and compiled.

One file per group, ``<operation>_<gpu>_<group>.json``, written anew after every problem, so that a run which ends early
leaves what it has. Prints a table; ``make docs`` makes ``docs/inner-results.md`` and tables of
``docs/ladder-transpose_add.md`` of the files. Needs torch. Ends with 1 where a result is wrong.
"""

from __future__ import annotations

from lab import compare
from lab.inner.compare import COMPARISON as INNER
from lab.transpose_add.compare import COMPARISON as TRANSPOSE_ADD

if __name__ == "__main__":
    compare.main({"inner": INNER, "transpose_add": TRANSPOSE_ADD}, __doc__)
