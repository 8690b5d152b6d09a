"""Check products inside JAX's transformations on the device that JAX has, and time calls in a jitted loop.

Each check and each time stands alone: one that fails prints its traceback, and the others go on.

    PYTHONPATH=src python benchmarks/jax_programs.py [--out FILE] [--calls 100]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import traceback
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import matmill.jax as mj

NEAR = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}
#: Products that are timed: square ones, so that a loop can feed each result to the next call.
SIZES = (64, 255, 1024, 1025, 4096)
_exact: Any = partial(jnp.matmul, precision="highest")


def _random(*shape: int, dtype: str = "float32") -> Any:
    numbers = np.random.default_rng(shape).standard_normal(shape)
    return jnp.asarray(numbers / max(1, shape[-1]) ** 0.5, dtype)


def _compare(ours: Any, theirs: Any, *arrays: Any) -> None:
    for x, y in zip(*(jax.tree.leaves(jax.jit(f)(*arrays)) for f in (ours, theirs)), strict=True):
        near = NEAR[x.dtype.name]
        p, q = (np.asarray(z, np.float64) for z in (x, y))
        np.testing.assert_allclose(p, q, rtol=0, atol=near * np.abs(q).max(initial=1e-30), strict=True)


def _gradients(f: Any) -> Any:
    return jax.grad(lambda *z: jnp.sin(f(*z).astype("float32")).sum(), (0, 1))


def _layers(f: Any) -> Any:
    return lambda x, w: jax.lax.scan(lambda c, each: (jnp.tanh(f(c, each)), None), x, w)[0]


def _steps(calls: int) -> Iterator[tuple[str, Any]]:
    for dtype in NEAR:
        for m, n, k in ((5, 3, 7), (130, 257, 1001), (3, 2, 100_000), (1024, 1024, 1024), (0, 3, 4)):
            x, y = _random(m, k, dtype=dtype), _random(k, n, dtype=dtype)
            yield f"jit {dtype} {m}x{n}x{k}", partial(_compare, mj.matmul, _exact, x, y)
            yield f"grad {dtype} {m}x{n}x{k}", partial(_compare, _gradients(mj.matmul), _gradients(_exact), x, y)
    for axes, *shapes in (((0, 0), (6, 40, 50), (6, 50, 30)), ((0, None), (6, 40, 50), (50, 30))):
        batch, (x, y) = [jax.vmap(f, axes) for f in (mj.matmul, _exact)], (_random(*shape) for shape in shapes)
        yield f"vmap {axes}", partial(_compare, *batch, x, y)
        yield f"grad of vmap {axes}", partial(_compare, *map(_gradients, batch), x, y)
    x, w, e = _random(40, 64), _random(5, 64, 64), _random(40, 200_000)
    scans = [_layers(f) for f in (mj.matmul, _exact)]
    yield "scan", partial(_compare, *scans, x, w)
    yield "grad of scan", partial(_compare, *map(_gradients, scans), x, w)
    yield "inner", partial(_compare, mj.inner, lambda z: _exact(z, z.T), e)
    yield "symmetry", lambda: np.testing.assert_array_equal(mj.inner(e), mj.inner(e).T)
    yield "transpose_add", partial(_compare, mj.transpose_add, lambda a, b: a.T + b, x, x.T)
    layers = (lambda a, b: mj.matmul(a, b, bias=b[0], activation="relu"), lambda a, b: jax.nn.relu(_exact(a, b) + b[0]))
    yield "epilogue", partial(_compare, *layers, x, w[0])
    for dtype, size in product(("bfloat16", "float32"), SIZES):
        yield f"{dtype} {size}", partial(_microseconds, size, dtype, calls)


def _seconds(loop: Any, *arrays: Any) -> float:
    start = time.perf_counter()
    jax.block_until_ready(loop(*arrays))
    return time.perf_counter() - start


def _microseconds(size: int, dtype: str, calls: int) -> dict[str, float]:
    """Time interleaved loops of products, after three calls and a pause in which better kernels may arrive."""
    arrays = _random(size, size, dtype=dtype), _random(size, size, dtype=dtype)

    def loop(f: Any) -> Any:
        return jax.jit(lambda x, w: jax.lax.fori_loop(0, calls, lambda _, c: f(c, w), x))

    loops = {"matmill": loop(mj.matmul), "jax": loop(jnp.matmul), "jax, highest precision": loop(_exact)}
    rounds = []
    for _ in range(10):
        rounds.append({name: _seconds(each, *arrays) / calls * 1e6 for name, each in loops.items()})
        time.sleep(0.5 if len(rounds) == 1 else 0)
    return {name: round(statistics.median(row[name] for row in rounds[3:]), 2) for name in loops}


def main() -> None:
    """Run all checks and times, print a line for each, and write what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--calls", type=int, default=100)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", val=True)
    record: dict[str, Any] = {"device": jax.devices()[0].device_kind, "jax": jax.__version__, "failed": {}, "us": {}}
    for name, step in _steps(options.calls):
        try:
            record["us"][name] = step() or "right"
            print(name, record["us"][name], flush=True)
        except Exception:  # noqa: BLE001 — the others are to run too
            record["failed"][name] = traceback.format_exc()
            print(f"FAILED {name}\n{record['failed'][name]}", flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"{record['device']}, jax {record['jax']}: {len(record['failed'])} failed")


if __name__ == "__main__":
    main()
