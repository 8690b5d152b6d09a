"""Fits the constants of the inner kernel's cost model to what benchmarks/inner_search.py measured, and judges them.

    python benchmarks/fit_inner.py benchmarks/results/inner_search_h200.jsonl --write

Constants are fitted to the products of the fit grid alone. What is printed: how well they meet both grids, by element
type and by what limits, the worst products, and the constants as they stand in ``src/matmill/cost/inner.py``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from matmill import arch as arches
from matmill.arch import DEFAULT as DEFAULT_ARCH
from matmill.bench.inner_fit import NAMES, Judged, Samples, Verdict, fit, grouped, judge, write
from matmill.bench.inner_search import read
from matmill.bench.products import layout_of
from matmill.cost import inner as cost

_WORST = 10


def main() -> None:
    """Fits, prints, and writes where it is asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument("--write", action="store_true", help="put the constants into the model's source")
    parser.add_argument("--judge-only", action="store_true", help="judge the model as it is")
    parser.add_argument("--arch", default=DEFAULT_ARCH, help=f"the GPU of the records (default: {DEFAULT_ARCH})")
    args = parser.parse_args()
    arch = arches.get(args.arch)
    found = read(args.records)
    fitted_on = [one for one in found if one.part == "fit"]
    constants = cost.DEFAULT
    if not args.judge_only:
        samples = Samples(fitted_on, arch)
        constants = fit(samples)
        print(f"loss {samples.loss(cost.DEFAULT):.4f} before, {samples.loss(constants):.4f} fitted")
    for part in ("fit", "judge"):
        judged = judge([one for one in found if one.part == part], arch, constants)
        if judged:
            _report(part, judged)
    print("\nconstants")
    for name in NAMES:
        print(f"    {name}: float = {getattr(constants, name)!r}")
    if args.write:
        path = Path(cost.__file__)
        write(path, constants)
        print(f"written to {path.name}")


def _report(part: str, judged: Sequence[Judged]) -> None:
    print(f"\n{part} grid{'':16} products  error  all configs  searched  chosen/best  worst decile")
    _line("all", judged)
    for title, key in (("", lambda one: one.found.problem.dtype.name), ("bound by ", lambda one: one.bound)):
        for name, some in grouped(judged, key).items():
            _line(f"{title}{name}", some)
    print(f"worst {_WORST} of the {part} grid by error: predicted, measured, best")
    for one in sorted(judged, key=lambda one: -abs(one.error))[:_WORST]:
        p = one.found.problem
        print(
            f"  {p!s:30} {layout_of(p):7} {one.bound:10} {one.predicted * 1e6:10.1f} {one.chosen * 1e6:10.1f} "
            f"{one.best * 1e6:10.1f} us  {one.error:+.1%}"
        )


def _line(name: str, judged: Sequence[Judged]) -> None:
    v = Verdict.of(judged)
    regret = "-" if v.regret is None else f"{v.regret:.3f}"
    tenth = "-" if v.tenth is None else f"{v.tenth:.3f}"
    print(f"{name:25} {v.products:8} {v.error:6.1%} {v.every_error:12.1%} {v.searched:9} {regret:>12} {tenth:>13}")


if __name__ == "__main__":
    main()
