"""Fits the constants of a cost model to what a search measured, and judges them.

    python benchmarks/fit_model.py inner benchmarks/results/inner_search_h200_fit.jsonl --write

Constants are fitted to the problems of the fit grid alone: all, or some (``--only``), or not far from what they are
(``--within``). What is printed: how well they meet both grids, by element type and by what limits, the worst problems,
and the constants as they stand in ``src/matmill/kernels/*/constants.json``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import Any

from lab.model_fit import Found, Judged, Samples, Verdict, fit, grouped, judge, write
from lab.models import MODELS
from matmill import arch as arches
from matmill.arch import DEFAULT as DEFAULT_ARCH
from matmill.arch import Arch
from matmill.errors import MatmillError

_WORST = 10


def main() -> None:
    """Fit, print, and write where it is asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(MODELS))
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument("--write", action="store_true", help="put the constants into the model's source")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="constants to fit (default: all)")
    parser.add_argument("--within", type=float, default=inf, help="largest factor by which a constant may change")
    parser.add_argument("--judge-only", action="store_true", help="judge the model as it is")
    parser.add_argument("--arch", default=DEFAULT_ARCH, help=f"the GPU of the records (default: {DEFAULT_ARCH})")
    args = parser.parse_args()
    entry = MODELS[args.model]
    model, (arch, result) = entry.model, _read(parser, args)
    if unknown := set(args.only) - set(model.names):
        parser.error(f"--only: {args.model} has no {', '.join(sorted(unknown))}; it has {', '.join(model.names)}")
    if args.within <= 1:
        parser.error(f"--within: {args.within} leaves no constant any room; give a factor above 1")
    constants = model.constants
    if not args.judge_only:
        samples = Samples(model, [one for one in result if one.part == "fit"], arch)
        constants = fit(samples, only=args.only, within=args.within)
        print(f"loss {samples.loss(model.constants):.4f} before, {samples.loss(constants):.4f} fitted")
    for part in ("fit", "judge"):
        judged = judge(model, [one for one in result if one.part == part], arch, constants)
        if judged:
            _report(part, judged, entry.layout)
    print("\nconstants")
    for name in model.names:
        print(f"    {name}: {getattr(constants, name)!r}")
    if args.write:
        write(model.path, constants, model.section)
        print(f"written to {model.path.name}")


def _read(parser: argparse.ArgumentParser, args: argparse.Namespace) -> tuple[Arch, list[Found[Any]]]:
    """Return the GPU and the problems of the records; ends with a message where there are none."""
    try:
        arch, result = arches.get(args.arch), MODELS[args.model].read(args.records)
    except (MatmillError, OSError) as error:
        parser.error(str(error))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        parser.error(f"records: no records of a search for {args.model} ({type(error).__name__}: {error})")
    if not any(args.judge_only or one.part == "fit" for one in result):
        parser.error(f"records: they hold no problem to {'judge' if args.judge_only else 'fit'} {args.model} by")
    return arch, result


def _report(part: str, judged: Sequence[Judged[Any]], layout: Callable[[Any], str]) -> None:
    print(f"\n{part} grid{'':16} problems  error  all configs  searched  chosen/best  worst decile")
    _line("all", judged)
    for title, key in (("", lambda one: one.found.problem.dtype.name), ("bound by ", lambda one: one.bound)):
        for name, some in grouped(judged, key).items():
            _line(f"{title}{name}", some)
    print(f"worst {_WORST} of the {part} grid by error: predicted, measured, best")
    for one in sorted(judged, key=lambda one: -abs(one.error))[:_WORST]:
        p = one.found.problem
        print(
            f"  {p!s:30} {layout(p):7} {one.bound:10} {one.predicted * 1e6:10.1f} {one.chosen * 1e6:10.1f} "
            f"{one.best * 1e6:10.1f} us  {one.error:+.1%}"
        )


def _line(name: str, judged: Sequence[Judged[Any]]) -> None:
    v = Verdict.of(judged)
    regret = "-" if v.regret is None else f"{v.regret:.3f}"
    tenth = "-" if v.tenth is None else f"{v.tenth:.3f}"
    print(f"{name:25} {v.problems:8} {v.error:6.1%} {v.every_error:12.1%} {v.searched:9} {regret:>12} {tenth:>13}")


if __name__ == "__main__":
    main()
