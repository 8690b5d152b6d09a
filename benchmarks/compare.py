"""Times ``matmill.transpose_add`` on a GPU beside torch, its compiler, Triton and CuPy, and copying alone, in one run.

    python benchmarks/compare.py --out benchmarks/results --group article

The group ``article`` is the article's shape beside all libraries, and what a call on small matrices costs the host;
``shapes`` are forty others beside torch, eager and compiled.

One file per group, ``transpose_add_<gpu>_<group>.json``, written anew after every shape, so that a run which ends early
leaves what it has. Prints a table; ``make docs`` makes a part of ``docs/ladder-transpose_add.md`` of the files. Needs
torch. Ends with 1 where a result is wrong.
"""

from __future__ import annotations

from lab.transpose_add.compare import main

if __name__ == "__main__":
    main(__doc__)
