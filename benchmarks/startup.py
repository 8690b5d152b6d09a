"""What it costs to begin: importing matmill, compiling one kernel, and taking it from the cache.

    python benchmarks/startup.py --repeats 5 --out startup.json

Every figure is the median of fresh processes, in milliseconds. The import is that of ``import matmill`` alone, without
the interpreter's own start. Compiling is that of the production GEMM kernel for sm_90a into an empty cache folder, the
loading of NVRTC included; cached is the same call in another process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from matmill.bench.environment import describe

SOURCE_TREE = Path(__file__).resolve().parents[1] / "src"
IMPORT = "import time; t = time.perf_counter(); import matmill; print(time.perf_counter() - t)"
COMPILE = """
import time
from matmill.arch import get
from matmill.choose import choose
from matmill.jit.compile import compile_source
from matmill.problem import Gemm
from matmill.jit.source import generate
problem, arch = Gemm(m=512, n=512, k=512), get("h200")
source = generate(choose(problem, arch).kernel, problem.dtype)
t = time.perf_counter()
compile_source(source, arch.target)
print(time.perf_counter() - t)
"""


def milliseconds(script: str, cache: Path) -> float:
    """Return what a script in a fresh process says it took."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE_TREE), "MATMILL_CACHE_DIR": str(cache)}
    environment.pop("MATMILL_CACHE", None)
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    return 1e3 * float(done.stdout)


def measure(repeats: int) -> dict[str, float]:
    """Return medians of ``repeats`` runs of each of the three."""
    taken: dict[str, list[float]] = {"import_ms": [], "cold_compile_ms": [], "cached_compile_ms": []}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            taken["import_ms"].append(milliseconds(IMPORT, Path(folder)))
            taken["cold_compile_ms"].append(milliseconds(COMPILE, Path(folder)))
            taken["cached_compile_ms"].append(milliseconds(COMPILE, Path(folder)))
    return {name: median(values) for name, values in taken.items()}


def main() -> None:
    """Measure, print and, with --out, record."""
    parser = argparse.ArgumentParser(description="Time import, cold compile and cached compile.")
    parser.add_argument("--repeats", type=int, default=5, help="fresh processes of each (default 5)")
    parser.add_argument("--out", type=Path, help="write the figures and the environment to this JSON file")
    args = parser.parse_args()
    result = measure(args.repeats)
    for name, value in result.items():
        print(f"{name:<18} {value:8.2f}")
    if args.out is not None:
        record = {**result, "repeats": args.repeats, "environment": describe(gpu=False)}
        args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
