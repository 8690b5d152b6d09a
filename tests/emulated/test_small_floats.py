"""Floats of fewer than 8 bits and cuda_fp8.h beside ml_dtypes; 8-bit floats in PTX are in tests/agreement."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import matmill
from matmill.emulator import Memory, run
from matmill.errors import EmulationError
from matmill.launch import Launch

Array = NDArray[Any]
E4M3, E5M2, BF16 = (np.dtype(t) for t in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16))
KINDS = {"e4m3": E4M3, "e5m2": E5M2}
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}


def narrow(x: Array, kind: str, relu: str) -> Array:
    """Return what PTX makes of floats: bit patterns."""
    with np.errstate(invalid="ignore"):
        clipped = np.clip(x.astype(np.float64), 0.0 if relu else -np.inf, LARGEST[kind])
    clipped = np.where((clipped == 0) & bool(relu), 0.0, np.maximum(clipped, -LARGEST[kind]))
    return np.where(np.isnan(x), 0x7F, clipped.astype(KINDS[kind]).view(np.uint8)).astype(np.uint8)


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
