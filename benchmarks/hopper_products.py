"""Time the products of examples/hopper beside cuBLAS, through torch.mm, on one H200.

    python benchmarks/hopper_products.py --out hopper_products.json

Both read normal random bfloat16 numbers; B's rows are contiguous along k, as in a linear layer. All calls of a size are
timed in one round-robin, many calls between two events, since the shortest take a few microseconds. Medians of the
rounds count. A kernel's result has to be cuBLAS's to within one rounding of the type.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

from hopper import run
from hopper.run import MARGIN, Trial
from lab.calls import interleaved
from matmill.bench.environment import describe
from matmill.dtypes import BF16
from matmill.jit.compile import compile_source
from matmill.launch import Pointer
from matmill.runtime.gpu import GPU

SQUARES = (512, 1024, 2048, 4096, 8192, 16384)
#: Products of language models: rows of activations, and the extents of weights.
LAYERS = (
    (64, 4096, 4096),
    (128, 14336, 4096),
    (512, 4096, 14336),
    (2048, 4096, 4096),
    (8192, 1280, 8192),
    (8192, 28672, 4096),
)
CONFIGS: dict[str, tuple[Callable[..., Trial], dict[str, int]]] = {
    "persistent 128x256": (run.persistent_product, {"BN": 256}),
    "persistent 128x256, groups of 16": (run.persistent_product, {"BN": 256, "GROUP_M": 16}),
    "persistent 128x192": (run.persistent_product, {"BN": 192}),
    "persistent 128x128": (run.persistent_product, {"BN": 128}),
    "multicast 128x256": (run.multicast_product, {"BN": 256}),
    "multicast 128x128": (run.multicast_product, {"BN": 128}),
}
_WORK, _MOST_CALLS = 2e-3, 50


def timed(torch: Any, call: Callable[[], object], seconds: float) -> Callable[[], float]:
    """Return a timer of one call: of as many as take about two milliseconds, between two events."""
    count = min(max(int(_WORK / seconds), 1), _MOST_CALLS)
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def timer() -> float:
        start.record()
        for _ in range(count):
            call()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1e3 / count

    return timer


def launching(prepared: Any, frame: Any) -> Callable[[], object]:
    """Return a call that launches what a frame holds."""
    return lambda: prepared(*frame.calls[0])


def calls(torch: Any, device: GPU, m: int, n: int, k: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield torch.mm and each kernel on the same matrices; raises where a kernel's result is not cuBLAS's."""
    a, b = (torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
    wanted = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    yield "torch.mm", lambda: torch.mm(a, b.t(), out=wanted)
    torch.mm(a, b.t(), out=wanted)
    d = torch.empty(m + 1, n + MARGIN, device="cuda", dtype=torch.bfloat16)
    pointers = {name: Pointer(name, tensor.data_ptr()) for name, tensor in (("A", a), ("B", b), ("D", d))}
    for name, (product, constants) in CONFIGS.items():
        d.fill_(float("nan"))
        trial = product(m, n, k, dtype=BF16, seed=None, **constants)
        launch = trial.launch(pointers)
        prepared, frame = device.prepare(compile_source(trial.source(), run.TARGET), launch), device.frame((launch,))
        frame.bind((), torch.cuda.current_stream().cuda_stream)
        prepared(*frame.calls[0])
        error = (d[:m, :n].float() - wanted.float()).abs() / wanted.float().abs().clip(min=1)
        if not error.max().item() <= 2.0**-7:
            raise SystemExit(f"{name} of {m}x{n}x{k}: wrong by {error.max().item():.3g}")
        yield name, launching(prepared, frame)


def main() -> None:
    """Measure, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    arguments = parser.parse_args()
    import torch  # noqa: PLC0415 — the usage needs no GPU

    device = GPU.get(0)
    rows: list[dict[str, Any]] = []
    record = {
        "record": "products of examples/hopper", "dtype": "bfloat16", "environment": describe(gpu=True), "rows": rows,
    }  # fmt: skip
    for m, n, k in (*((size,) * 3 for size in SQUARES), *LAYERS):
        guess = max(2.0 * m * n * k / 6e14, 4e-6)
        seconds = interleaved({name: timed(torch, call, guess) for name, call in calls(torch, device, m, n, k)})
        rows.append({"m": m, "n": n, "k": k, "seconds": seconds})
        rates = {name: 2.0 * m * n * k / value / 1e12 for name, value in seconds.items()}
        print(f"{m}x{n}x{k}: " + ", ".join(f"{name} {rate:.0f}" for name, rate in rates.items()), flush=True)
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
