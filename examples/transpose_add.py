"""x.transpose(0, 1) + y, by torch's eager operators and by matmill: the same bits, and on a GPU how long each takes.

On a GPU the matrices are bfloat16, x 24300 x 11520 and y 11520 x 24300, and times are medians of interleaved runs, by
CUDA events; what a call costs the host is shown on 32 x 32. On the CPU the matrices are small and only the bits are
compared.

Run it: python examples/transpose_add.py [--rows 24300] [--columns 11520] [--dtype bfloat16] [--runs 50]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import matmill.torch

ON_GPU, ON_CPU = (24300, 11520), (243, 115)


def eager(x: Any, y: Any) -> Any:
    """Return torch's answer: a view, and an addition whose reads of x go across its rows."""
    return x.transpose(0, 1) + y


def milliseconds(operator: Callable[[Any, Any], Any], x: Any, y: Any) -> float:
    """Return one run on the current stream, between two events."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    operator(x, y)
    end.record()
    end.synchronize()
    elapsed: float = start.elapsed_time(end)
    return elapsed


def host_microseconds(operator: Callable[[Any, Any], Any], x: Any, y: Any, calls: int = 1000) -> float:
    """Give what one call costs the host: the least of seven means, with nothing left in the GPU's queue before each."""
    means = []
    for _ in range(7):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            operator(x, y)
        means.append((time.perf_counter() - start) / calls * 1e6)
    return min(means)


def main() -> None:
    """Compare, and time where there is a GPU."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows, columns = ON_GPU if device == "cuda" else ON_CPU
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=rows, help="rows of x (default: %(default)s)")
    parser.add_argument("--columns", type=int, default=columns, help="columns of x (default: %(default)s)")
    parser.add_argument("--dtype", default="bfloat16", help="element type (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=50, help="timed runs of each (default: %(default)s)")
    options = parser.parse_args()

    kind = getattr(torch, options.dtype)
    x = torch.randn(options.rows, options.columns, device=device).to(kind)
    y = torch.randn(options.columns, options.rows, device=device).to(kind)
    operators = {"torch": eager, "matmill": matmill.torch.transpose_add}
    if not torch.equal(eager(x, y), matmill.torch.transpose_add(x, y)):
        raise SystemExit("matmill and torch differ")
    print(f"x {options.rows} x {options.columns} {options.dtype} on {device}: the same bits as x.transpose(0, 1) + y")
    if device == "cpu":
        print("no GPU here: nothing to time")
        return
    times: dict[str, list[float]] = {name: [] for name in operators}
    for turn in range(options.runs + 5):
        for name, operator in operators.items():
            taken = milliseconds(operator, x, y)
            if turn >= 5:  # the first ones warm clocks and allocator
                times[name].append(taken)
    moved = 3 * x.numel() * x.element_size()
    for name, runs in times.items():
        median = statistics.median(runs)
        print(f"{name:8} {median:.3f} ms  {moved / median / 1e9:.2f} TB/s")
    small = torch.ones(32, 32, device=device, dtype=kind)
    costs = {name: host_microseconds(operator, small, small) for name, operator in operators.items()}
    print("of the host, a call on 32 x 32 takes", ", ".join(f"{cost:.1f} us ({name})" for name, cost in costs.items()))


if __name__ == "__main__":
    main()
