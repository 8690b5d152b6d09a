"""Corners of PTX semantics where a plain NumPy call would be wrong: signs of zeros, flushing, limits, bfloat16."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from support.ptx_tools import compile_ptx, launch, per_thread

Array = np.ndarray[Any, Any]
INF = float("inf")


def f32(*values: float) -> Array:
    return np.array(values, np.float32)


def bits(row: Array) -> list[int]:
    return [int(x) for x in row.view(f"u{row.dtype.itemsize}")]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_sum_that_vanishes_is_negative_only_when_rounding_down(dtype: type[np.floating[Any]]) -> None:
    t = f"f{8 * np.dtype(dtype).itemsize}"
    a = np.array([1.5, 0.0, -0.0, 0.0, -0.0], dtype)
    b = np.array([-1.5, 0.0, 0.0, -0.0, -0.0], dtype)
    wanted = {"rn": [0, 0, 0, 0, 1], "rz": [0, 0, 0, 0, 1], "rp": [0, 0, 0, 0, 1], "rm": [1, 0, 1, 1, 1]}
    for mode, signs in wanted.items():
        for code in (f"add.{mode}.{t} d, a0, a1;", f"sub.{mode}.{t} d, a0, a2;", f"fma.{mode}.{t} d, a0, a3, a1;"):
            got = per_thread(code, a, b, -b, np.ones(5, dtype), out=dtype)
            assert not got.any()
            assert np.signbit(got).astype(int).tolist() == signs, code


# Near the limits of float64, where the error of an operation is itself no float64.
LIMITS = [
    1.7976931348623157e308,
    1.1e308,
    1e-308,
    5e-324,
    3e-310,
    1e200,
    1e-170,
    1.0000000000000002,
    3.0,
    -7e-300,
    -1e307,
]


def directed(exact: Fraction, mode: str) -> float:
    """Return a rational number rounded to float64 in a direction, by stepping from the nearest one."""
    try:
        near = exact.numerator / exact.denominator
    except OverflowError:
        near = INF if exact > 0 else -INF
    above = near == INF or (near != -INF and Fraction(near) > exact)
    below = near == -INF or (near != INF and Fraction(near) < exact)
    if above and (mode == "rm" or (mode == "rz" and exact > 0)):
        return math.nextafter(near, -INF)
    if below and (mode == "rp" or (mode == "rz" and exact < 0)):
        return math.nextafter(near, INF)
    return near


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
def test_directed_float64_at_the_limits(mode: str) -> None:
    a, b = (np.array(x, np.float64) for x in zip(*((x, y) for x in LIMITS for y in LIMITS), strict=True))
    c = np.resize(np.array(LIMITS[::-1], np.float64), len(a))
    exact: dict[str, Any] = {
        "add": lambda x, y, _: x + y,
        "sub": lambda x, y, _: x - y,
        "mul": lambda x, y, _: x * y,
        "div": lambda x, y, _: x / y,
        "fma": lambda x, y, z: x * y + z,
    }
    for name, function in exact.items():
        operands = "a0, a1, a2" if name == "fma" else "a0, a1"
        got = per_thread(f"{name}.{mode}.f64 d, {operands};", a, b, c, out=np.float64)
        for x, y, z, d in zip(a.tolist(), b.tolist(), c.tolist(), got.tolist(), strict=True):
            assert d == directed(function(Fraction(x), Fraction(y), Fraction(z)), mode), (name, x, y, z)
    zeros = np.array([0.0, -0.0])
    assert per_thread(f"div.{mode}.f64 d, a0, a1;", np.ones(2), zeros, out="f8").tolist() == [INF, -INF]
    assert per_thread(f"rcp.{mode}.f64 d, a0;", np.array([0.0, INF]), out="f8").tolist() == [INF, 0.0]
    roots = np.array([1.5e-323, 2.0, 4.0, 3e-310, 1.7976931348623157e308, 0.0, INF])
    for x, d in zip(roots.tolist(), per_thread(f"sqrt.{mode}.f64 d, a0;", roots, out="f8").tolist(), strict=True):
        if x in {0.0, 4.0, INF}:
            assert d == x**0.5
        else:
            low, high = (d, math.nextafter(d, INF)) if mode != "rp" else (math.nextafter(d, 0), d)
            assert Fraction(low) ** 2 < Fraction(x) < Fraction(high) ** 2


def test_float16_flushes_too() -> None:
    tiny, normal = 0x0001, 0x0400
    a = np.array([tiny, 0x8000 | tiny, normal, 0x8000 | normal, 0x03FF], np.uint16)
    b = np.array([0x3C00] * 5, np.uint16)
    assert per_thread("mul.rn.ftz.f16 d, a0, a1;", a, b, out="u2").tolist() == [0, 0x8000, normal, 0x8000 | normal, 0]
    assert per_thread("mul.rn.f16 d, a0, a1;", a, b, out="u2").tolist() == a.tolist()
    assert per_thread("fma.rn.ftz.f16 d, a0, a1, a0;", a, b, out="u2").tolist() == [0, 0x8000, 0x0800, 0x8800, 0]
    assert per_thread("abs.ftz.f16 d, a0;", a, out="u2").tolist() == [0, 0, normal, normal, 0]
    assert per_thread("min.ftz.f16 d, a0, a1;", a, b, out="u2").tolist() == [0, 0x8000, normal, 0x8000 | normal, 0]
    code = "setp.eq.ftz.f16 p, a0, a1; selp.u32 d, 1, 0, p;"
    assert per_thread(code, a, np.zeros(5, np.uint16), out="u4").tolist() == [1, 1, 0, 0, 1]
    assert per_thread("slct.ftz.b32.f32 d, 5, 6, a0;", f32(-1e-45, 1e-45, -1.0), out="u4").tolist() == [5, 5, 6]
    assert per_thread("slct.b32.f32 d, 5, 6, a0;", f32(-1e-45, 1e-45, -0.0), out="u4").tolist() == [6, 5, 5]


def test_saturation_and_relu_give_a_positive_zero() -> None:
    a = f32(-0.0, -1.0, float("nan"), 2.0, 0.5)
    for code in ("add.sat.f32 d, a0, a0;", "cvt.sat.f32.f32 d, a0;"):
        got = per_thread(code, a, out=np.float32)
        assert bits(got)[:4] == [0, 0, 0, 0x3F800000]
    half = np.array([-0.0, -1.0, 2.0], np.float16)
    got = per_thread("fma.rn.relu.f16 d, a0, a1, a0;", half, np.zeros(3, np.float16), out=np.float16)
    assert bits(got) == [0, 0, 0x4000]
    packed = per_thread("cvt.rn.relu.f16x2.f32 d, a0, a1;", f32(-0.0), f32(-1.0), out="u4")
    assert packed.tolist() == [0]


def test_bfloat16_of_values_beyond_float32() -> None:
    a = np.array([1e-60, -1e-60, 1e300, -1e300, 5e-41, 3.4e38, 1.0000001])
    assert per_thread("cvt.rn.bf16.f64 d, a0;", a, out="u2").tolist() == [0, 0x8000, 0x7F80, 0xFF80, 1, 0x7F80, 0x3F80]
    tiny, one = np.array([0x0080, 0x8080], np.uint16), np.array([0x0080, 0x0080], np.uint16)
    zero = np.zeros(2, np.uint16)
    assert per_thread("fma.rn.bf16 d, a0, a1, a2;", tiny, one, zero, out="u2").tolist() == [0, 0x8000]
    a32 = f32(1.0000001, -1.0000001, 3.4e38, 1e-41, INF)
    assert per_thread("cvt.rz.bf16.f32 d, a0;", a32, out="u2").tolist() == [0x3F80, 0xBF80, 0x7F7F, 0, 0x7F80]


def test_integers_round_to_bfloat16_in_every_direction() -> None:
    a = np.array([257, 258, 259, -257, -259, 2**31 - 1], np.int32)
    wanted = {
        "rn": [256, 258, 260, -256, -260, 2**31],
        "rz": [256, 258, 258, -256, -258, 2**31 - 2**23],
        "rm": [256, 258, 258, -258, -260, 2**31 - 2**23],
        "rp": [258, 258, 260, -256, -258, 2**31],
    }
    for mode, numbers in wanted.items():
        got = per_thread(f"cvt.{mode}.bf16.s32 d, a0;", a, out="u2")
        assert (got.astype(np.uint32) << 16).view(np.float32).tolist() == numbers, mode


def test_conversions_that_saturate() -> None:
    a = np.array([-5, 0, 1, 7], np.int32)
    assert per_thread("cvt.rn.sat.f32.s32 d, a0;", a, out="f4").tolist() == [0.0, 0.0, 1.0, 1.0]
    large = f32(3.4e38, -3.4e38, INF, 1.0)
    assert per_thread("cvt.rn.satfinite.bf16.f32 d, a0;", large, out="u2").tolist() == [0x7F7F, 0xFF7F, 0x7F7F, 0x3F80]
    largest = [0x7F7FE000, 0xFF7FE000, 0x7F7FE000, 0x3F800000]
    top = f32(3.4028235e38, -3.4028235e38, INF, 1.0)
    assert per_thread("cvt.rna.satfinite.tf32.f32 d, a0;", top, out="u4").tolist() == largest


def test_approximate_division_has_no_reciprocals_of_the_largest() -> None:
    a, b = f32(1e38, -1e38, INF, 3.0, 1e38), f32(2e38, 2e38, 2e38, 1.5, INF)
    got = per_thread("div.approx.f32 d, a0, a1;", a, b, out="f4")
    assert bits(got)[:2] == [0, 0x80000000]
    assert np.isnan(got[2])
    assert got.tolist()[3:] == [2.0, 0.0]
    assert per_thread("div.full.f32 d, a0, a1;", a[:1], b[:1], out="f4").tolist() == [0.5]


ATOMIC = """extern "C" __global__ void k(float* x, float* o) {
  __shared__ float s[32];
  const int t = threadIdx.x;
  s[t] = x[t];
  atomicAdd(s + t, 1e-41f);
  atomicAdd(x + t, 1e-41f);
  o[t] = s[t];
}"""


def test_float_sums_flush_in_global_memory_alone() -> None:
    x = np.full(32, 1e-40, np.float32)
    x[1] = 1.0
    arrays = {"x": x, "o": np.zeros(32, np.float32)}
    before = x.copy()
    launch(compile_ptx(ATOMIC), arrays)
    assert arrays["x"].tolist()[:3] == [0.0, 1.0, 0.0]
    np.testing.assert_array_equal(arrays["o"], before + np.float32(1e-41))


def test_remainders_by_zero_are_all_ones_as_in_compiled_code() -> None:
    for t in ("s32", "u32", "s64", "u64", "s16", "u16"):
        word = np.dtype(f"u{int(t[1:]) // 8}")
        a = np.array([7, 0, 1 << (8 * word.itemsize - 1)], word)
        assert (per_thread(f"rem.{t} d, a0, a1;", a, np.zeros(3, word), out=word) == ~word.type(0)).all()


def test_shared_sizes_are_rounded_up_to_the_unit() -> None:
    source = """extern "C" __global__ void k(unsigned* o) {
      __shared__ unsigned s[32];
      s[threadIdx.x] = threadIdx.x;
      unsigned d, t;
      asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(d)); asm("mov.u32 %0, %%total_smem_size;" : "=r"(t));
      o[0] = d; o[1] = t; o[2 + threadIdx.x] = s[threadIdx.x];
    }"""
    arrays = {"o": np.zeros(40, np.uint32)}
    launch(compile_ptx(source), arrays, shared=100)
    assert arrays["o"][:2].tolist() == [100, 256]
