"""Floats of 8 bits and fewer: conversions, cuda_fp8.h and mma.sync, beside ml_dtypes and exact arithmetic."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import matmill
from matmill.emulator import Memory, run
from matmill.emulator.arith.tensor_core import rule_of
from matmill.errors import EmulationError
from matmill.jit.compile import compile_ptx
from matmill.jit.source import Source
from matmill.launch import Launch
from support.mma_fragments import product
from support.tensor_core_rule import sum_of_products

Array = NDArray[Any]
E4M3, E5M2, BF16 = (np.dtype(t) for t in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16))
KINDS = {"e4m3": E4M3, "e5m2": E5M2}
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}
PAIRS = "".join(
    f'asm("cvt.rn.satfinite{relu}.{kind}x2.f32 %0, %1, %2;" : "=h"(b) : "f"(x[i + 1]), "f"(x[i]));out[{n} * n + i] = b;'
    for n, (kind, relu) in enumerate((kind, relu) for kind in KINDS for relu in ("", ".relu"))
)
HALVES = "".join(
    f'asm("cvt.rn.satfinite{relu}.{kind}x2.{half}x2 %0, %1;" : "=h"(b) : "r"({half}[i])); out[{n} * n + i] = b;'
    for n, (half, kind, relu) in enumerate(
        (half, kind, relu) for half in ("f16", "bf16") for kind in KINDS for relu in ("", ".relu")
    )
)
BACK = "".join(
    f'asm("cvt.rn{relu}.{half}x2.{kind}x2 %0, %1;" : "=r"(w) : "h"((unsigned short)(i | (255 - i) << 8)));'
    f"out[{n} * 256 + i] = w;"
    for n, (half, kind, relu) in enumerate(
        (half, kind, relu) for half in ("f16", "bf16") for kind in KINDS for relu in ("", ".relu")
    )
)
SOURCE = f"""
extern "C" __global__ void pairs(const float* x, unsigned short* out, int n) {{
  unsigned short b; for (int i = threadIdx.x; i < n; i += 256) {{ {PAIRS} }} }}
extern "C" __global__ void halves(const unsigned* f16, const unsigned* bf16, unsigned short* out, int n) {{
  unsigned short b; for (int i = threadIdx.x; i < n; i += 256) {{ {HALVES} }} }}
extern "C" __global__ void back(unsigned* out) {{ unsigned w; const int i = threadIdx.x; {BACK} }}
"""


@pytest.fixture(scope="module")
def ptx() -> str:
    # In PTX alone also conversions from and to bfloat16, which GPUs after Hopper have.
    return compile_ptx(Source("float8", "float8", SOURCE), "sm_90a")


def launched(ptx: str, entry: str, *args: Array | np.generic) -> None:
    memory = Memory()
    given = tuple(memory.bind(f"x{n}", a, access="rw") if isinstance(a, np.ndarray) else a for n, a in enumerate(args))
    assert run(ptx, Launch("float8", entry, (1, 1, 1), (256, 1, 1), given), memory).ok


def narrow(x: Array, kind: str, relu: str) -> Array:
    """Return what PTX makes of floats: bit patterns."""
    with np.errstate(invalid="ignore"):
        clipped = np.clip(x.astype(np.float64), 0.0 if relu else -np.inf, LARGEST[kind])
    clipped = np.where((clipped == 0) & bool(relu), 0.0, np.maximum(clipped, -LARGEST[kind]))
    return np.where(np.isnan(x), 0x7F, clipped.astype(KINDS[kind]).view(np.uint8)).astype(np.uint8)


def values(rng: np.random.Generator) -> Array:
    """Return float32 values: numbers of both formats, halfway between two, next to that, beyond, and special."""
    numbers = np.concatenate([np.arange(256, dtype=np.uint8).view(k).astype(np.float32) for k in KINDS.values()])
    numbers = np.sort(numbers[np.isfinite(numbers)])
    halfway = (numbers[:-1] + numbers[1:]) / 2
    near = [np.nextafter(halfway, np.float32(s * np.inf)) for s in (-1, 1)]
    odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 1e38, 464, 479.99, 61440, -61441], np.float32)
    drawn = (rng.uniform(-1, 1, 999) * 2.0 ** rng.integers(-20, 18, 999)).astype(np.float32)
    return np.concatenate([numbers, halfway, *near, odd, drawn]).astype(np.float32)


def test_pairs_of_float32(ptx: str) -> None:
    x = values(np.random.default_rng(0))
    out = np.zeros((4, len(x) - 1), np.uint16)
    launched(ptx, "pairs", x, out, np.int32(len(x) - 1))
    for bits, (kind, relu) in zip(out, ((k, r) for k in KINDS for r in ("", ".relu")), strict=True):
        expected = narrow(x, kind, relu)
        assert (bits & 0xFF == expected[:-1]).all(), kind
        assert (bits >> 8 == expected[1:]).all(), kind


def test_halves(ptx: str) -> None:
    every = np.arange(65536, dtype=np.uint16)
    words = np.stack([every, every[::-1]], axis=1).copy().view(np.uint32)[:, 0][::7].copy()
    out = np.zeros((8, len(words)), np.uint16)
    launched(ptx, "halves", words, words, out, np.int32(len(words)))
    forms = [(np.dtype(h), k, r) for h in (np.float16, BF16) for k in KINDS for r in ("", ".relu")]
    for bits, (half, kind, relu) in zip(out, forms, strict=True):
        with np.errstate(invalid="ignore"):
            x = words.view(half).astype(np.float32)
        assert (bits.view(np.uint8) == narrow(x, kind, relu)).all(), (half, kind, relu)


def test_back_to_halves(ptx: str) -> None:
    out = np.zeros((8, 256), np.uint32)
    launched(ptx, "back", out)
    patterns = np.stack([np.arange(256), 255 - np.arange(256)], axis=1).astype(np.uint8)
    forms = [(np.dtype(h), k, r) for h in (np.float16, BF16) for k in KINDS for r in ("", ".relu")]
    for bits, (half, kind, relu) in zip(out, forms, strict=True):
        expected = patterns.view(KINDS[kind]).astype(np.float32)
        if relu:
            expected = np.where(expected <= 0, np.float32(0), expected)
        result = bits.view(half).reshape(256, 2)
        same = result.view(np.uint16) == expected.astype(half).view(np.uint16)
        assert (same | np.isnan(expected)).all(), (half, kind, relu)
        assert (result.view(np.uint16)[np.isnan(expected)] == 0x7FFF).all()


SMALLER = {"e2m3": ml_dtypes.float6_e2m3fn, "e3m2": ml_dtypes.float6_e3m2fn, "e2m1": ml_dtypes.float4_e2m1fn}
SMALLER_PTX = """.version 9.0 .target sm_100a .address_size 64
  .entry k(.param .u64 x, .param .u64 out, .param .u64 back) {
  .reg .b64 from, to, again; .reg .b32 t, w; .reg .f32 lo, hi; .reg .b16 h; .reg .b8 q;
  ld.param.u64 from, [x]; ld.param.u64 to, [out]; ld.param.u64 again, [back]; mov.u32 t, %tid.x;
  mad.wide.u32 from, t, 8, from; mad.wide.u32 to, t, 2, to; mad.wide.u32 again, t, 4, again;
  ld.global.v2.f32 {lo, hi}, [from]; BODY st.global.b16 [to], h; st.global.b32 [again], w; ret; }
"""


def smaller(body: str, x: Array, half: np.dtype[Any]) -> tuple[Array, Array]:
    """Return the pairs that ``body`` makes of pairs of x, as bit patterns, and what it makes of them again."""
    memory, out, back = Memory(), np.zeros(len(x), np.uint16), np.zeros((len(x), 2), half)
    arrays = (("x", x), ("out", out), ("back", back.view(np.uint16)))
    args = tuple(memory.bind(name, array, access="rw") for name, array in arrays)
    assert run(SMALLER_PTX.replace("BODY", body), Launch("float8", "k", (1, 1, 1), (len(x), 1, 1), args), memory).ok
    return out, back


@pytest.mark.parametrize(("kind", "mode", "relu"), [("e2m3", "rn", ""), ("e3m2", "rn", ".relu"), ("e2m1", "rn", ""),
                                                    ("e2m1", "rz", ".relu"), ("e3m2", "rz", "")])  # fmt: skip
def test_floats_of_six_and_four_bits(kind: str, mode: str, relu: str) -> None:
    dtype = np.dtype(SMALLER[kind])
    count = 16 if kind == "e2m1" else 64
    numbers = np.arange(count, dtype=np.uint8).view(dtype).astype(np.float32)
    largest = float(numbers.max())
    halfway = (numbers[: count // 2 - 1] + numbers[1 : count // 2]) / 2
    odd = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-9, -1e-9, 99, -99, 1.01, -0.4], np.float32)
    flat = np.concatenate([numbers, halfway, -halfway, np.nextafter(halfway, np.float32(0)), odd])
    x = np.resize(flat, (len(flat) // 2, 2))
    pair = "mov.b16 h, {q, 0};" if kind == "e2m1" else ""
    to = "q" if kind == "e2m1" else "h"
    out, back = smaller(
        f"cvt.{mode}.satfinite{relu}.{kind}x2.f32 {to}, hi, lo; {pair} cvt.rn.f16x2.{kind}x2 w, {to};",
        x,
        np.dtype(np.float16),
    )
    clipped = np.where(np.isnan(x), largest, np.clip(x, 0 if relu else -largest, largest))
    if mode == "rz":
        below = numbers[: count // 2]
        clipped = np.copysign(below[np.searchsorted(below, np.abs(clipped), side="right") - 1], clipped)
    clipped = np.where((clipped == 0) & bool(relu), 0.0, clipped)
    expected = clipped.astype(np.float32).astype(dtype)
    bits = 4 if kind == "e2m1" else 8
    assert (np.stack([out & ((1 << bits) - 1), out >> bits], axis=1) == expected.view(np.uint8)).all()
    assert (back.view(np.uint16) == expected.astype(np.float16).view(np.uint16)).all()


@pytest.mark.parametrize("mode", ["rz", "rp", "rz.satfinite", "rp.satfinite"])
def test_exponents(mode: str) -> None:
    exact = np.ldexp(1.0, np.arange(-127, 128)).astype(np.float32)
    odd = np.array([np.inf, -np.inf, np.nan, 0, -0.0, 1e-45, 5e-39, 7e-39, 3.4e38], np.float32)
    x = np.resize(np.concatenate([exact, -exact, exact * np.float32(1.25), odd]), (387, 2))
    out, back = smaller(f"cvt.{mode}.ue8m0x2.f32 h, hi, lo; cvt.rn.bf16x2.ue8m0x2 w, h;", x, BF16)
    size = np.abs(x).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        exponent = np.clip(np.ceil(np.log2(size)) if "rp" in mode else np.floor(np.log2(size)), -127, 128) + 127
    expected = np.where(np.isnan(x), 255, np.minimum(exponent, 254 if "satfinite" in mode else 255)).astype(np.uint8)
    assert (np.stack([out & 255, out >> 8], axis=1) == expected).all()
    powers = np.where(expected == 255, np.nan, np.ldexp(1.0, expected.astype(np.int32) - 127))
    np.testing.assert_array_equal(back.astype(np.float64), powers)


HEADER = """#include <cuda_fp8.h>
__global__ void classes(const float* x, const double* d, float* out, unsigned char* bytes) {
  const int t = threadIdx.x, n = blockDim.x;
  const __nv_fp8_e4m3 a(x[t]);
  const __nv_fp8_e5m2 b(d[t]);
  out[t] = float(a); out[n + t] = float(b) * 2; out[2 * n + t] = __half2float(__half(a));
  const __nv_fp8x4_e4m3 v(make_float4(x[t], -x[t], x[t] * 2, 3));
  const float4 w = float4(v);
  out[3 * n + t] = w.x + w.y * 4 + w.z + w.w;
  const __nv_fp8x2_e5m2 p(__floats2half2_rn(x[t], x[t] + 1));
  const __half2 h = __half2(p);
  out[4 * n + t] = __low2float(h) - __high2float(h);
  bytes[t] = __nv_cvt_float_to_fp8(x[t], __NV_NOSAT, __NV_E4M3);
  bytes[n + t] = __nv_cvt_bfloat16raw_to_fp8(__nv_bfloat16_raw(__float2bfloat16(x[t])), __NV_SATFINITE, __NV_E5M2);
  bytes[2 * n + t] = __nv_cvt_halfraw_to_fp8(__half_raw(__float2half(x[t])), __NV_SATFINITE, __NV_E4M3);
  out[5 * n + t] = int(__nv_fp8_e4m3(t - 16)) + bool(a) + (short)b;
}
"""


def test_classes_of_cuda_fp8() -> None:
    pytest.importorskip("nvidia.cu13", reason="the headers of CUDA are not installed")
    n = 64
    x = np.random.default_rng(3).uniform(-300, 300, n).astype(np.float32)
    out, bytes_ = np.zeros((6, n), np.float32), np.zeros((3, n), np.uint8)
    matmill.emulate(HEADER, "classes", 1, n, x, x.astype(np.float64), out, bytes_).raise_if()
    a, b = (x.astype(k).astype(np.float32) for k in KINDS.values())
    doubled = np.clip(2 * x, -448, 448).astype(E4M3).astype(np.float32)
    low, high = (
        v.astype(np.float16).astype(E5M2).astype(np.float32) for v in (x, x.astype(np.float16) + np.float32(1))
    )
    assert (out[:4] == [a, 2 * b, a, a - 4 * a + doubled + 3]).all()
    high = (x + np.float32(1)).astype(np.float16).astype(E5M2).astype(np.float32)
    assert (out[4] == low - high).all()
    wholes = (np.arange(n) - 16).astype(np.float32).astype(E4M3).astype(np.int32)
    assert (out[5] == wholes + (a != 0) + b.astype(np.int32)).all()
    assert (bytes_[0] == x.astype(E4M3).view(np.uint8)).all()
    assert (bytes_[1] == narrow(x.astype(BF16).astype(np.float32), "e5m2", "")).all()
    assert (bytes_[2] == narrow(x.astype(np.float16).astype(np.float32), "e4m3", "")).all()


FORMS = [
    (32, "e4m3", "e4m3", "f32"), (32, "e5m2", "e4m3", "f32"), (16, "e4m3", "e5m2", "f32"), (32, "e5m2", "e5m2", "f16"),
    (16, "e4m3", "e4m3", "f16"),
]  # fmt: skip


@pytest.mark.parametrize(("k", "a", "b", "d"), FORMS)
def test_mma(k: int, a: str, b: str, d: str) -> None:
    rng = np.random.default_rng(k)
    sums = np.dtype(np.float32 if d == "f32" else np.float16)
    shapes = ((16, k), KINDS[a]), ((k, 8), KINDS[b]), ((16, 8), sums)
    x, y, c = (rng.uniform(-2, 2, shape).astype(dtype) for shape, dtype in shapes)
    result = product((a, b, d), x.view(np.uint8), y.view(np.uint8), c)
    np.testing.assert_allclose(result, x.astype(np.float64) @ y.astype(np.float64) + c, rtol=2e-3, atol=2e-3)
    # In f16, of every four k the first two from zero and the last two onto that, then C.
    rule, pairs = rule_of("sm_90a", "f16", d), np.arange(k) % 4 < 2
    groups = [np.arange(k)] if k == 16 else [np.flatnonzero(pairs), np.flatnonzero(~pairs)]
    exact = np.zeros((16, 8))
    for group in groups:
        rows, columns = x[:, group].astype(np.float64).tolist(), y[group].T.astype(np.float64).tolist()
        for i, j in np.ndindex(16, 8):
            exact[i, j] = sum_of_products(rows[i], columns[j], float(exact[i, j]), rule)
    assert (result == exact.astype(sums) + c).all()


@pytest.mark.parametrize(
    "line",
    [
        "cvt.rn.e4m3x2.f32 h, f, f;", "cvt.rz.satfinite.e4m3x2.f32 h, f, f;", "cvt.rn.satfinite.f16x2.e4m3x2 r, h;",
        "cvt.rn.satfinite.e4m3x2.f64 h, f, f;", "cvt.rn.f32.e4m3x2 f, h;", "cvt.rn.satfinite.e4m3x2.e5m2x2 h, h;",
        "mma.sync.aligned.m16n8k8.row.col.f32.e4m3.e4m3.f32 {f, f, f, f}, {r, r}, {r}, {f, f, f, f};",
    ],
)  # fmt: skip
def test_forms_that_ptx_does_not_have(line: str) -> None:
    text = f""".version 8.7 .target sm_90a .address_size 64 .entry k() {{ .reg .b16 h; .reg .b32 r; .reg .f32 f;
    {line} ret; }}"""
    with pytest.raises(EmulationError):
        run(text, Launch("float8", "k", (1, 1, 1), (32, 1, 1), ()), Memory())
