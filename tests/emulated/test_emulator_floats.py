"""The emulator's float64 and batched arithmetic beside exact numbers; instructions are in tests/agreement."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agreement.case import Op, same, table
from agreement.exact import F32, F64, Format, add, multiply
from agreement.values import floats, midpoints, zipped
from matmill.emulator.arith import exact
from matmill.emulator.arith.fma64 import fma64
from support.examples import examples

Array = np.ndarray[Any, Any]


def fused(fmt: Format, a: int, b: int, c: int) -> int:
    """Return the bits of a b + c rounded once."""
    x, y, z = map(fmt.decode, (a, b, c))
    return fmt.encode(add(multiply(x, y), z))


@examples(300)
@given(*[st.floats(width=32, allow_nan=False, allow_infinity=False)] * 3)
def test_fma32_is_exact_for_any_numbers(a: float, b: float, c: float) -> None:
    rows = [np.array([v], np.float32) for v in (a, b, c)]
    with np.errstate(all="ignore"):
        result = exact.fma32_wide(rows[0], rows[1], rows[2]).astype(np.float32)
    assert int(result.view(np.uint32)[0]) == fused(F32, *(int(v.view(np.uint32)[0]) for v in rows))


@examples(300)
@given(*[st.floats(allow_nan=False, allow_infinity=False)] * 3)
def test_fma64_is_exact_for_any_numbers(a: float, b: float, c: float) -> None:
    rows, out = [np.array([v]) for v in (a, b, c)], np.empty(1)
    with np.errstate(all="ignore"):
        fma64(rows[0], rows[1], rows[2], out)
    assert int(out.view(np.uint64)[0]) == fused(F64, *(int(v.view(np.uint64)[0]) for v in rows))


def test_subnormal_numbers_take_no_longer_than_a_few_times_others() -> None:
    rng = np.random.default_rng(21)
    a, b, c = (rng.standard_normal(50_000) for _ in range(3))

    def seconds(scale: float) -> float:
        out, taken = np.empty(a.shape), []
        for _ in range(3):
            start = time.perf_counter()
            fma64(a * scale, b, c * scale, out)
            taken.append(time.perf_counter() - start)
        return min(taken)

    assert seconds(1e-310) < 25 * seconds(1.0)


def test_batched_fma_equals_single_fma() -> None:
    # 4 x 4 FMAs in a row run as a batch.
    lines = [".reg .f32 x<4>, y<4>, z<16>;"]
    lines += [f"add.f32 x{i}, %1, {float(i)}; add.f32 y{i}, %2, {float(i)};" for i in range(4)]
    lines += [f"mul.f32 z{n}, %3, {1.0 + n / 16};" for n in range(16)]
    lines += [f"fma.rn.f32 z{4 * i + j}, x{i}, y{j}, z{4 * i + j};" for i in range(4) for j in range(4)]
    bits = zipped([x[::40] for x in floats("f4", seed=4)], [x[::20] for x in midpoints(np.float32)])
    ops = [Op(f"{{{' '.join(lines)} mov.b32 %0, z{n};}}", "f4") for n in range(16)]
    arrays, _ = table("batches", [("f4", x) for x in bits], ops).emulate()
    a, b, c = (x.view(np.float32) for x in bits)
    with np.errstate(all="ignore"):
        for n, (op, row) in enumerate(zip(ops, arrays["o"].reshape(16, -1), strict=True)):
            x, y, z = a + np.float32(n // 4), b + np.float32(n % 4), c * np.float32(1.0 + n / 16)
            rows = zip(*(v.view(np.uint32).tolist() for v in (x, y, z)), strict=True)
            assert same(op, row, np.array([fused(F32, *terms) for terms in rows], np.uint64)).all()
