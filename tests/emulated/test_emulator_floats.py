"""Floating-point instructions and conversions against exact rational arithmetic and NumPy."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import DTypeLike

from matmill.emulator.arith import exact
from matmill.emulator.arith.fma64 import fma64
from support.examples import examples
from support.ptx_tools import per_thread

Array = np.ndarray[Any, Any]
INF = float("inf")
SPECIALS = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    INF,
    -INF,
    float("nan"),
    1.5,
    3.4e38,
    -3.4e38,
    1e-38,
    1e-45,
    -1e-45,
    1.17549435e-38,
    0.1,
]
SIGNIFICAND = {np.dtype("f2"): 11, np.dtype("f4"): 24, np.dtype("f8"): 53}
LOWEST = {np.dtype("f2"): -24, np.dtype("f4"): -149, np.dtype("f8"): -1074}


def round_exact(value: Fraction, dtype: DTypeLike, mode: str = "rn", bits: int = 0, lowest: int = 0) -> float:
    """Return a rational number rounded once to a binary format, by definition.

    That is the quotient by its last place, rounded.
    """
    dtype = np.dtype(dtype)
    bits, lowest = bits or SIGNIFICAND[dtype], lowest or LOWEST[dtype]
    if not value:
        return 0.0
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    unit = Fraction(2) ** max(exponent - bits + 1, lowest)
    scaled = value / unit
    floor = scaled.numerator // scaled.denominator
    rest = scaled - floor
    up = {
        "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and floor % 2 == 1),
        "rz": rest > 0 and floor < 0,
        "rm": False,
        "rp": rest > 0,
    }[mode]
    result = (floor + up) * unit
    largest = Fraction(float(np.finfo(dtype).max)) if bits == SIGNIFICAND[dtype] else Fraction(255, 128) * 2**127
    if abs(result) > largest:
        if mode == "rz" or (mode == "rm" and result > 0) or (mode == "rp" and result < 0):
            return math.copysign(float(largest), float(value > 0) - 0.5)
        return INF if result > 0 else -INF
    return float(result) if result else math.copysign(0.0, -1.0 if value < 0 else 1.0)


def fma_reference(a: float, b: float, c: float, dtype: DTypeLike, mode: str = "rn") -> float:
    if math.isfinite(a) and math.isfinite(b) and not math.isfinite(c):
        return c
    if not all(map(math.isfinite, (a, b, c))) or (a == 0 or b == 0):
        with np.errstate(all="ignore"):
            product = np.float64(a) * np.float64(b)
            plain = float(product + np.float64(c))
        negative = math.copysign(1, product) < 0 or math.copysign(1, c) < 0
        return -0.0 if mode == "rm" and plain == 0 and negative else plain
    total = Fraction(a) * Fraction(b) + Fraction(c)
    return round_exact(total, dtype, mode) if total else (-0.0 if mode == "rm" else 0.0)


def same(got: Array, wanted: Array) -> None:
    """Assert equal values, NaN to NaN, zeros with their signs."""
    wanted = np.asarray(wanted, got.dtype)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    keep = ~np.isnan(got)
    np.testing.assert_array_equal(got[keep].view(f"u{got.dtype.itemsize}"), wanted[keep].view(f"u{got.dtype.itemsize}"))


def floats(dtype: DTypeLike, count: int, seed: int) -> Array:
    """Return special values against each other, any bit patterns, and values near 1."""
    rng = np.random.default_rng(seed)
    size = np.dtype(dtype).itemsize
    patterns = rng.integers(0, 256, (count, size), dtype=np.uint8).view(dtype)[:, 0]
    with np.errstate(all="ignore"):
        special = rng.permutation(np.array(SPECIALS * 6)).astype(dtype)
        return np.concatenate([special, patterns, rng.standard_normal(count).astype(dtype)])


@pytest.mark.parametrize(("type_name", "dtype"), [("f16", "f2"), ("f32", "f4"), ("f64", "f8")])
def test_fma_rounds_once(type_name: str, dtype: str) -> None:
    a, b, c = (floats(dtype, 300, s) for s in (1, 2, 3))
    got = per_thread(f"fma.rn.{type_name} d, a0, a1, a2;", a, b, c, out=dtype)
    same(got, np.array([fma_reference(float(x), float(y), float(z), dtype) for x, y, z in zip(a, b, c, strict=True)]))


# Products whose sum with c is on or next to a midpoint of two float32, c deciding: what float64 alone gets wrong.
MIDPOINTS = [
    (1.0 + 2.0**-23, 1.0 + 2.0**-23, 2.0**-60),
    (1.0 + 2.0**-12, 1.0 + 2.0**-12, 2.0**-80),
    (1.0 + 2.0**-12, 1.0 + 2.0**-12, -(2.0**-80)),
    (-1.0 - 2.0**-12, 1.0 + 2.0**-12, 2.0**-80),
    (2.0**-70, 2.0**-75, 2.0**-149),
    (1.5 * 2.0**-75, 2.0**-75, 2.0**-149),
    (2.0**-75, -(2.0**-75), 2.0**-140),
    (2.0**-63, 2.0**-63 * (1 + 2.0**-23), 2.0**-126),
    (2.0**100, 2.0**27, 2.0**60),
    (-(2.0**100), 2.0**28, 2.0**127),
]


def test_fma32_decides_midpoints_by_the_small_term() -> None:
    a, b, c = (np.array(column, np.float32) for column in zip(*MIDPOINTS, strict=True))
    got = per_thread("fma.rn.f32 d, a0, a1, a2;", a, b, c, out=np.float32)
    same(
        got,
        np.array([fma_reference(float(x), float(y), float(z), np.float32) for x, y, z in zip(a, b, c, strict=True)]),
    )
    with np.errstate(all="ignore"):
        naive = (a.astype(np.float64) * b + c).astype(np.float32)
    assert (naive.view(np.uint32) != got.view(np.uint32)).any(), "the cases no longer test what they are for"


finite32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
finite64 = st.floats(allow_nan=False, allow_infinity=False)


@examples(300)
@given(finite32, finite32, finite32)
def test_fma32_is_exact_for_any_numbers(a: float, b: float, c: float) -> None:
    with np.errstate(all="ignore"):
        wide = exact.fma32_wide(np.float32(a), np.float32(b), np.float32(c))  # type: ignore[arg-type] # scalars serve as rows
        same(wide.astype(np.float32), np.array([fma_reference(a, b, c, np.float32)]))


@examples(300)
@given(finite64, finite64, finite64)
def test_fma64_is_exact_for_any_numbers(a: float, b: float, c: float) -> None:
    out = np.empty(1)
    with np.errstate(all="ignore"):
        fma64(np.array([a]), np.array([b]), np.array([c]), out)
    same(out, np.array([fma_reference(a, b, c, np.float64)]))


def significands(rng: np.random.Generator, count: int) -> Array:
    """Return float64 numbers from 1 to 2, of either sign: any, of few bits, and next to powers of two."""
    few = (rng.integers(8, 16, count) << rng.integers(0, 50, count)).astype(np.float64)
    edge = 1 + rng.integers(-3, 4, count) * 2.0**-52
    kinds = rng.uniform(1, 2, count), 2 * np.frexp(few)[0], edge
    return np.asarray(np.choose(rng.integers(0, 3, count), kinds) * rng.choice([-1.0, 1.0], count))


def fma64_operands(count: int, seed: int) -> tuple[Array, Array, Array]:
    """Return operands of float64 FMAs at the limits.

    Results are about the subnormals or overflow, terms cancel, and some operands are special.
    """
    rng = np.random.default_rng(seed)
    exponent = np.concatenate([rng.integers(-1085, -1015, count // 2), rng.integers(1018, 1028, count - count // 2)])
    first = rng.integers(-1074, 1024, count)
    a = np.ldexp(significands(rng, count), first)
    b = np.ldexp(significands(rng, count), np.clip(exponent - first, -1074, 1023))
    c = np.ldexp(significands(rng, count), np.clip(exponent + rng.integers(-60, 60, count), -1074, 1023))
    product = a * b
    cancelled = np.where(np.isfinite(product), -product, c) * (1 + rng.integers(-2, 3, count) * 2.0**-52)
    anywhere = np.ldexp(significands(rng, count), rng.integers(-1074, 1024, count))
    c = np.choose(rng.integers(0, 4, count), (c, cancelled, anywhere, np.copysign(0.0, c)))
    for row in (a, b, c):
        special = rng.integers(0, 40, count) == 0
        row[special] = rng.choice([0.0, -0.0, INF, -INF, math.nan, 5e-324, 2.0**-1022, 1.7976931348623157e308], count)[
            special
        ]
    return a, b, c


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_fma64_rounds_once_at_the_limits_of_exponents(mode: str) -> None:
    with np.errstate(all="ignore"):
        a, b, c = fma64_operands(4000, seed=19)
    got = per_thread(f"fma.{mode}.f64 d, a0, a1, a2;", a, b, c, out=np.float64)
    terms = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    same(got, np.array([fma_reference(x, y, z, np.float64, mode) for x, y, z in terms]))


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
def test_directed_float64_arithmetic_at_the_limits_of_exponents(mode: str) -> None:
    with np.errstate(all="ignore"):
        rows = fma64_operands(2000, seed=20)
        a, b, c = (np.where(np.isfinite(row) & (row != 0), row, 1.0) for row in rows)
    code = f"add.{mode}.f64 d0, a0, a2; mul.{mode}.f64 d1, a0, a1; div.{mode}.f64 d2, a0, a1; rcp.{mode}.f64 d3, a0;"
    got = per_thread(code, a, b, c, out=np.float64, outs=4)
    x, y, z = ([Fraction(value) for value in row.tolist()] for row in (a, b, c))
    sums = [p + q for p, q in zip(x, z, strict=True)]
    products = [p * q for p, q in zip(x, y, strict=True)]
    quotients = [p / q for p, q in zip(x, y, strict=True)]
    for values, row in zip((sums, products, quotients, [1 / p for p in x]), got, strict=True):
        same(row, np.array([round_exact(v, np.float64, mode) if v else -0.0 if mode == "rm" else 0.0 for v in values]))


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


def outer_product_code() -> str:
    """Return 4 x 4 FMAs in a row, which run as a batch; the results are then folded into one."""
    lines = [".reg .f32 x<4>, y<4>, z<16>;"]
    lines += [f"add.f32 x{i}, a0, {float(i)}; add.f32 y{i}, a1, {float(i)};" for i in range(4)]
    lines += [f"mul.f32 z{n}, a2, {1.0 + n / 16};" for n in range(16)]
    lines += [f"fma.rn.f32 z{4 * i + j}, x{i}, y{j}, z{4 * i + j};" for i in range(4) for j in range(4)]
    lines += [f"mov.b32 d{n}, z{n};" for n in range(16)]
    return "\n".join(lines)


def test_batched_fma_equals_single_fma() -> None:
    a, b, c = (floats(np.float32, 200, s) for s in (4, 5, 6))
    for index, terms in enumerate(MIDPOINTS):
        a[index], b[index], c[index] = terms
    got = per_thread(outer_product_code(), a, b, c, out=np.float32, outs=16)
    with np.errstate(all="ignore"):
        for i in range(4):
            for j in range(4):
                n = 4 * i + j
                x, y = a + np.float32(i), b + np.float32(j)
                z = c * np.float32(1.0 + n / 16)
                same(got[n], exact.fma32_wide(x, y, z).astype(np.float32))


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize(("type_name", "dtype"), [("f32", "f4"), ("f64", "f8")])
def test_directed_roundings(type_name: str, dtype: str, mode: str) -> None:
    rng = np.random.default_rng(7)
    a, b, c = (rng.standard_normal(200).astype(dtype) for _ in range(3))
    b[:20] = a[:20]
    code = f"""add.{mode}.{type_name} d0, a0, a1; sub.{mode}.{type_name} d1, a0, a1; mul.{mode}.{type_name} d2, a0, a1;
    div.{mode}.{type_name} d3, a0, a1; fma.{mode}.{type_name} d4, a0, a1, a2;
    abs.{type_name} d5, a0; sqrt.{mode}.{type_name} d5, d5; rcp.{mode}.{type_name} d6, a0;"""
    got = per_thread(code, a, b, c, out=dtype, outs=7)
    x, y, z = ([Fraction(float(v)) for v in r] for r in (a, b, c))
    exact_results = [
        [p + q for p, q in zip(x, y, strict=True)],
        [p - q for p, q in zip(x, y, strict=True)],
        [p * q for p, q in zip(x, y, strict=True)],
        [p / q for p, q in zip(x, y, strict=True)],
        [p * q + r for p, q, r in zip(x, y, z, strict=True)],
    ]
    for n, values in enumerate(exact_results):
        wanted = [round_exact(v, dtype, mode) for v in values]
        np.testing.assert_array_equal(got[n], np.array(wanted, dtype), err_msg=f"operation {n}")
    np.testing.assert_array_equal(got[6], np.array([round_exact(1 / v, dtype, mode) for v in x], dtype))
    for root, value in zip(got[5], a, strict=True):
        square, size = Fraction(float(root)) ** 2, abs(Fraction(float(value)))
        other = np.nextafter(root, np.array(0 if mode == "rp" else INF, dtype))
        if mode == "rp":
            assert square >= size > Fraction(float(other)) ** 2
        else:
            assert square <= size < Fraction(float(other)) ** 2


@pytest.mark.parametrize(("type_name", "dtype"), [("f16", "f2"), ("f32", "f4"), ("f64", "f8")])
def test_arithmetic_agrees_with_ieee(type_name: str, dtype: str) -> None:
    a, b = floats(dtype, 200, 8), floats(dtype, 200, 9)
    with np.errstate(all="ignore"):
        for name, wanted in (("add", a + b), ("sub", a - b), ("mul", a * b)):
            same(per_thread(f"{name}.{type_name} d, a0, a1;", a, b, out=dtype), wanted)
        if dtype != "f2":
            same(per_thread(f"div.rn.{type_name} d, a0, a1;", a, b, out=dtype), a / b)
            same(per_thread(f"sqrt.rn.{type_name} d, a0;", a, out=dtype), np.sqrt(a))
            same(per_thread(f"rcp.rn.{type_name} d, a0;", a, out=dtype), 1 / a)
    word = a.view(f"u{a.dtype.itemsize}")
    sign = np.array(1 << (8 * a.dtype.itemsize - 1), word.dtype)
    same(per_thread(f"neg.{type_name} d, a0;", a, out=dtype), (word ^ sign).view(dtype))
    same(per_thread(f"abs.{type_name} d, a0;", a, out=dtype), (word & ~sign).view(dtype))


@pytest.mark.parametrize(("type_name", "dtype"), [("f16", "f2"), ("f32", "f4"), ("f64", "f8")])
def test_min_and_max_prefer_numbers_and_order_zeros(type_name: str, dtype: str) -> None:
    a, b = floats(dtype, 200, 10), floats(dtype, 200, 11)
    zero = np.array([0.0, -0.0, 0.0, -0.0], dtype)
    a[:4], b[:4] = zero, zero[::-1]
    low, high = (per_thread(f"{name}.{type_name} d, a0, a1;", a, b, out=dtype) for name in ("min", "max"))
    for x, y, small, big in zip(a.tolist(), b.tolist(), low.tolist(), high.tolist(), strict=True):
        numbers = [v for v in (x, y) if not math.isnan(v)]
        if not numbers:
            assert math.isnan(small)
            assert math.isnan(big)
            continue
        ordered = sorted(numbers, key=lambda v: (v, math.copysign(1, v)))
        assert (small, math.copysign(1, small)) == (ordered[0], math.copysign(1, ordered[0]))
        assert (big, math.copysign(1, big)) == (ordered[-1], math.copysign(1, ordered[-1]))
    if dtype != "f8":
        kept = per_thread(f"max.NaN.{type_name} d, a0, a1;", a, b, out=dtype)
        np.testing.assert_array_equal(np.isnan(kept), np.isnan(a) | np.isnan(b))


@pytest.mark.parametrize(
    "name", ["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"]
)
def test_comparisons_with_nan(name: str) -> None:
    a, b = floats(np.float32, 100, 12), floats(np.float32, 100, 13)
    b[::5] = a[::5]
    got = per_thread(f"setp.{name}.f32 p, a0, a1; selp.u32 d, 1, 0, p;", a, b, out=np.uint32).astype(bool)
    unordered = np.isnan(a) | np.isnan(b)
    base = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}
    if name in base:
        wanted = base[name] & ~unordered
    elif name in {"num", "nan"}:
        wanted = unordered == (name == "nan")
    else:
        wanted = base[name[:2]] | unordered
    np.testing.assert_array_equal(got, wanted)


def test_flush_to_zero() -> None:
    a = np.array([1e-39, -1e-39, 1.17549435e-38, 2.0, np.nan, -np.inf], np.float32)
    b = np.array([1.0, 1.0, 0.5, 1e-39, 1.0, 1.0], np.float32)
    same(per_thread("mul.ftz.f32 d, a0, a1;", a, b, out=np.float32), np.array([0.0, -0.0, 0.0, 0.0, np.nan, -np.inf]))
    same(per_thread("add.ftz.f32 d, a0, a1;", a, b, out=np.float32), np.array([1.0, 1.0, 0.5, 2.0, np.nan, -np.inf]))
    zero = np.zeros(6, np.float32)
    same(
        per_thread("fma.rn.ftz.f32 d, a0, a1, a2;", a, b, zero, out=np.float32),
        np.array([0.0, 0.0, 0.0, 0.0, np.nan, -np.inf]),
    )
    assert per_thread("setp.eq.ftz.f32 p, a0, 0f00000000; selp.u32 d, 1, 0, p;", a, out=np.uint32).tolist() == [
        1,
        1,
        0,
        0,
        0,
        0,
    ]


def test_saturation() -> None:
    a = np.array([-1.0, 0.25, 2.0, np.nan, np.inf], np.float32)
    same(per_thread("add.sat.f32 d, a0, 0f00000000;", a, out=np.float32), np.array([0.0, 0.25, 1.0, 0.0, 1.0]))


def test_special_functions_are_near() -> None:
    rng = np.random.default_rng(14)
    x = rng.uniform(0.01, 20, 200).astype(np.float32)
    wide = x.astype(np.float64)
    wanted = {
        "rcp.approx": 1 / wide, "sqrt.approx": np.sqrt(wide), "rsqrt.approx": wide**-0.5, "ex2.approx": 2**wide,
        "lg2.approx": np.log2(wide), "sin.approx": np.sin(wide), "cos.approx": np.cos(wide),
        "tanh.approx": np.tanh(wide),
    }  # fmt: skip
    for name, value in wanted.items():
        same(per_thread(f"{name}.f32 d, a0;", x, out=np.float32), value.astype(np.float32))
    same(per_thread("div.full.f32 d, a0, a1;", x, x[::-1].copy(), out=np.float32), x / x[::-1])
    same(per_thread("copysign.f32 d, a0, a1;", -x, x, out=np.float32), -x)
    edges = np.array([1.0, np.inf, np.nan, 1e-40, 0.0], np.float32)
    tests = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    code = " ".join(f"testp.{t}.f32 p, a0; selp.u32 d{n}, 1, 0, p;" for n, t in enumerate(tests))
    got = per_thread(code, edges, out=np.uint32, outs=6)
    assert got.T.tolist() == [
        [1, 0, 1, 0, 1, 0], [0, 1, 1, 0, 0, 0], [0, 0, 0, 1, 0, 0], [1, 0, 1, 0, 0, 1], [1, 0, 1, 0, 1, 0],
    ]  # fmt: skip


def bf16(values: Array) -> Array:
    """Return values that bfloat16 holds, as bit patterns."""
    return (np.asarray(values, np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def from_bf16(bits: Array) -> Array:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def bf16_reference(value: Fraction) -> int:
    return int(bf16(np.array([round_exact(value, np.float32, bits=8, lowest=-133)], np.float32))[0])


def test_bfloat16_arithmetic_rounds_once() -> None:
    rng = np.random.default_rng(15)
    a, b, c = (bf16(rng.standard_normal(200) * 2.0 ** rng.integers(-20, 20, 200)) for _ in range(3))
    # A product on a midpoint, and a term far below it that decides.
    a[0], b[0], c[0] = bf16(np.array([1.0078125, 1.5, 2.0**-100]))
    code = "fma.rn.bf16 d0, a0, a1, a2; add.rn.bf16 d1, a0, a1; mul.rn.bf16 d2, a0, a1;"
    got = per_thread(code, a, b, c, out=np.uint16, outs=3)
    x, y, z = ([Fraction(float(v)) for v in from_bf16(r)] for r in (a, b, c))
    assert got[0].tolist() == [bf16_reference(p * q + r) for p, q, r in zip(x, y, z, strict=True)]
    assert got[1].tolist() == [bf16_reference(p + q) for p, q in zip(x, y, strict=True)]
    assert got[2].tolist() == [bf16_reference(p * q) for p, q in zip(x, y, strict=True)]


def test_packed_halves_work_side_by_side() -> None:
    rng = np.random.default_rng(16)
    a, b, c = (rng.standard_normal(200).astype(np.float16) for _ in range(3))
    packed = [np.ascontiguousarray(x).view(np.uint32) for x in (a, b, c)]
    code = "fma.rn.f16x2 d0, a0, a1, a2; add.f16x2 d1, a0, a1; max.f16x2 d2, a0, a1; neg.f16x2 d3, a0;"
    got = per_thread(code, *packed, out=np.uint32, outs=4)
    exact_fma = [fma_reference(float(x), float(y), float(z), np.float16) for x, y, z in zip(a, b, c, strict=True)]
    same(got[0].view(np.float16), np.array(exact_fma))
    same(got[1].view(np.float16), a + b)
    same(got[2].view(np.float16), np.maximum(a, b))
    same(got[3].view(np.float16), -a)
    wide = [bf16(x) for x in (a, b)]
    got = per_thread("mul.bf16x2 d, a0, a1;", *(x.view(np.uint32) for x in wide), out=np.uint32).view(np.uint16)
    exact_product = [
        bf16_reference(Fraction(float(p)) * Fraction(float(q))) for p, q in zip(*map(from_bf16, wide), strict=True)
    ]
    assert got.tolist() == exact_product


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize("type_name", ["s16", "u16", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize(("source", "dtype"), [("f32", "f4"), ("f64", "f8"), ("f16", "f2")])
def test_float_to_integer(source: str, dtype: str, type_name: str, mode: str) -> None:
    rng = np.random.default_rng(17)
    with np.errstate(all="ignore"):
        scaled = rng.standard_normal(50) * 2.0 ** rng.integers(0, 70, 50)
        limits = [2.0**31, 2.0**63, -(2.0**63), 2.0**64, 2.0**32]
        values = np.array([*rng.uniform(-100, 100, 50), *scaled, *np.arange(-4, 5) / 2, *SPECIALS, *limits]).astype(
            dtype
        )
    bits = int(type_name[1:])
    got = per_thread(f"cvt.{mode}.{type_name}.{source} d, a0;", values, out=f"u{bits // 8}")
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if type_name[0] == "s" else (0, (1 << bits) - 1)
    roundings: dict[str, Callable[[Fraction], int]] = {
        "rni": round,
        "rzi": math.trunc,
        "rmi": math.floor,
        "rpi": math.ceil,
    }
    for value, d in zip(values.tolist(), got.tolist(), strict=True):
        if math.isnan(value):
            wanted = 1 << bits - 1 if source == "f64" or bits == 64 else 0
        elif math.isinf(value):
            wanted = high if value > 0 else low
        else:
            wanted = min(max(roundings[mode](Fraction(value)), low), high)
        assert d == wanted & ((1 << bits) - 1), (value, mode)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("type_name", ["s32", "u32", "s64", "u64"])
@pytest.mark.parametrize(("target", "dtype"), [("f16", "f2"), ("f32", "f4"), ("f64", "f8")])
def test_integer_to_float(target: str, dtype: str, type_name: str, mode: str) -> None:
    rng = np.random.default_rng(18)
    bits = int(type_name[1:])
    values = rng.integers(0, 1 << 63, 100, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    values >>= rng.integers(0, 63, 100).astype(np.uint64)
    values = np.concatenate([values, np.array([0, 1, (1 << 64) - 1, (1 << 63) - 1, 1 << 63, 16777217], np.uint64)])
    values = (values & np.uint64((1 << bits) - 1)).astype(f"u{bits // 8}")
    got = per_thread(f"cvt.{mode}.{target}.{type_name} d, a0;", values, out=dtype)
    for value, d in zip(values.tolist(), got.tolist(), strict=True):
        number = value - (1 << bits) if type_name[0] == "s" and value >> bits - 1 else value
        assert d == round_exact(Fraction(number), dtype, mode), (number, mode)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_float_to_narrower_float(mode: str) -> None:
    rng = np.random.default_rng(19)
    with np.errstate(all="ignore"):
        values = np.concatenate([rng.standard_normal(200) * 2.0 ** rng.integers(-170, 140, 200), np.array(SPECIALS)])
        for target, dtype, source, wide in (
            ("f32", "f4", "f64", "f8"),
            ("f16", "f2", "f32", "f4"),
            ("f16", "f2", "f64", "f8"),
        ):
            inputs = values.astype(wide)
            got = per_thread(f"cvt.{mode}.{target}.{source} d, a0;", inputs, out=dtype)
            finite = np.isfinite(inputs)
            zeros = inputs == 0
            wanted = [round_exact(Fraction(v), dtype, mode) if v else v for v in inputs[finite].tolist()]
            same(got[finite], np.array(wanted))
            same(got[~finite], inputs[~finite].astype(dtype))
            assert (np.signbit(got[zeros]) == np.signbit(inputs[zeros])).all()


def test_bfloat16_conversions() -> None:
    rng = np.random.default_rng(20)
    values = (rng.standard_normal(200) * 2.0 ** rng.integers(-120, 120, 200)).astype(np.float32)
    values[:4] = [np.inf, -np.inf, np.nan, -0.0]
    down = per_thread("cvt.rn.bf16.f32 d, a0;", values, out=np.uint16)
    assert down[:4].tolist() == [0x7F80, 0xFF80, 0x7FFF, 0x8000]
    assert down[4:].tolist() == [bf16_reference(Fraction(v)) for v in values[4:].tolist()]
    toward_zero = per_thread("cvt.rz.bf16.f32 d, a0;", values, out=np.uint16)
    np.testing.assert_array_equal(toward_zero[3:], values[3:].view(np.uint32) >> 16)
    same(per_thread("cvt.f32.bf16 d, a0;", down, out=np.float32), from_bf16(down))
    packed = per_thread("cvt.rn.bf16x2.f32 d, a0, a1;", values, values[::-1].copy(), out=np.uint32)
    np.testing.assert_array_equal(packed >> 16, down)
    np.testing.assert_array_equal(packed & 0xFFFF, down[::-1])
    halves = per_thread("cvt.rn.f16x2.f32 d, a0, a1;", values, values[::-1].copy(), out=np.uint32).view(np.float16)
    with np.errstate(all="ignore"):
        same(halves[1::2], values.astype(np.float16))
        same(halves[::2], values[::-1].astype(np.float16))


def test_tf32_conversion_rounds_ties_away() -> None:
    values = np.array([1.0 + 2.0**-11, -1.0 - 2.0**-11, 1.0 + 2.0**-12, 3.0, np.inf, 1.0 + 3 * 2.0**-11], np.float32)
    got = per_thread("cvt.rna.tf32.f32 d, a0;", values, out=np.float32)
    np.testing.assert_array_equal(
        got, np.array([1 + 2.0**-10, -1 - 2.0**-10, 1.0, 3.0, np.inf, 1 + 2 * 2.0**-10], np.float32)
    )


def test_integer_to_integer_truncates_extends_and_saturates() -> None:
    values = np.array([0, 1, 127, 128, 255, 256, -1, -128, -129, 1 << 31, -(1 << 31), (1 << 63) - 1], np.int64)
    low = values.astype(np.int32)
    code = "cvt.s64.s32 d0, a0; cvt.u64.u32 d1, a0; cvt.s64.s8 d2, a0; cvt.u64.u8 d3, a0; cvt.u64.u16 d4, a0;"
    got = per_thread(code, low, out=np.int64, outs=5)
    for row, kind in zip(got, (np.int32, np.uint32, np.int8, np.uint8, np.uint16), strict=True):
        np.testing.assert_array_equal(row, low.astype(kind).astype(np.int64))
    code = "cvt.sat.s8.s64 d0, a0; cvt.sat.u8.s64 d1, a0; cvt.sat.u32.s64 d2, a0; cvt.s32.s64 d3, a0;"
    got = per_thread(code, values, out=np.int32, outs=4)
    np.testing.assert_array_equal(got[0], np.clip(values, -128, 127))
    np.testing.assert_array_equal(got[1], np.clip(values, 0, 255))
    np.testing.assert_array_equal(got[2].view(np.uint32), np.clip(values, 0, (1 << 32) - 1))
    np.testing.assert_array_equal(got[3], values.astype(np.int32))
    rounded = np.array([0.5, 1.5, -0.5, 2.7, np.nan], np.float32)
    same(per_thread("cvt.rni.f32.f32 d, a0;", rounded, out=np.float32), np.rint(rounded))
    same(per_thread("cvt.sat.f32.f32 d, a0;", rounded, out=np.float32), np.array([0.5, 1.0, 0.0, 1.0, 0.0]))
