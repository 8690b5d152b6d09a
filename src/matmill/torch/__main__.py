"""``python -m matmill.torch SCRIPT ...``: run a program that is not to be touched with matmill enabled.

The program runs as with ``python SCRIPT ...``. What matmill did follows on standard error at its end.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from matmill.problem import SPLIT_METHODS
from matmill.settings import rank
from matmill.torch.results import report
from matmill.torch.session import disable, enable, load_decisions


def main(arguments: list[str] | None = None) -> None:
    """Run a script or a module. Exits as the program does, with 2 where there is none."""
    parser = argparse.ArgumentParser(
        prog="python -m matmill.torch",
        usage="python -m matmill.torch [OPTIONS] (SCRIPT | -m MODULE) [ARGUMENTS ...]",
        description="Run a PyTorch program in which matmill answers matrix products where it is faster.",
    )
    parser.add_argument("--no-benchmark", action="store_true", help="time nothing: the cost models decide")
    parser.add_argument("--decisions", metavar="FILE", help="decide by a file that save_decisions wrote")
    parser.add_argument("--float32", choices=list(SPLIT_METHODS), help="multiply float32 in pieces on tensor cores")
    parser.add_argument("--html", metavar="FILE", help="write the report to a page, too")
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is the name of a module")
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("rest", metavar="ARGUMENTS", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if not options.module and not Path(options.script).exists():
        parser.error(f"there is no file {options.script}")
    if options.decisions is not None:
        try:
            load_decisions(options.decisions)
        except (OSError, ValueError) as error:
            parser.error(f"--decisions: {error}")
    enable(benchmark=not options.no_benchmark, float32=options.float32)
    try:
        _run(options.script, options.rest, as_module=options.module)
    finally:
        disable()
        if rank() == 0:
            sys.stderr.write(f"\nmatmill.torch: {report()}\n")
            if options.html is not None:
                _write(options.html)


def _write(path: str) -> None:
    """Write the report's page; a file that cannot be written is no failure of the program."""
    try:
        report().write_html(path)
    except OSError as error:
        sys.stderr.write(f"matmill.torch: no page: {error}\n")


def _run(script: str, rest: list[str], *, as_module: bool) -> None:
    """Run a program as Python would."""
    sys.argv = [script, *rest]
    if as_module:
        sys.path.insert(0, "")
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(script).resolve().parent))
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
