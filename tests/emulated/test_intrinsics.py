"""Intrinsics that real code uses: parts of registers, 128-bit integers and atomics, vectors of atomics, whole turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import matmill
from matmill.emulator import Memory, Report, run
from matmill.errors import EmulationError
from matmill.jit.compile import compile_ptx
from matmill.jit.source import Source
from matmill.launch import Launch

Array = NDArray[Any]
PARTS: dict[str, tuple[int, str, Callable[[Array, Array], Array]]] = {
    "__vadd2": (2, "u", lambda a, b: a + b), "__vsub2": (2, "u", lambda a, b: a - b),
    "__vaddss2": (2, "i", lambda a, b: np.clip(a + b, -(1 << 15), (1 << 15) - 1)),
    "__vaddus2": (2, "u", lambda a, b: np.minimum(a + b, (1 << 16) - 1)),
    "__vsubss2": (2, "i", lambda a, b: np.clip(a - b, -(1 << 15), (1 << 15) - 1)),
    "__vabsdiffu4": (1, "u", lambda a, b: np.abs(a - b)), "__vabsdiffs4": (1, "i", lambda a, b: np.abs(a - b)),
    "__vmaxs4": (1, "i", np.maximum), "__vminu2": (2, "u", np.minimum),
    "__vavgu4": (1, "u", lambda a, b: (a + b + 1) >> 1),
}  # fmt: skip
CALLS = "".join(f"out[{n} * 256 + t] = {name}(a, b);" for n, name in enumerate(PARTS))
SOURCE = f"""
extern "C" __global__ void parts(const unsigned* x, unsigned* out) {{
  const int t = threadIdx.x; const unsigned a = x[t], b = x[256 + t]; {CALLS}
  out[{len(PARTS)} * 256 + t] = __vsads4(a, b); out[{len(PARTS) + 1} * 256 + t] = __vsadu2(a, b);
  asm volatile("pmevent 3;"); }}
"""


@pytest.fixture(scope="module")
def ptx() -> str:
    return compile_ptx(Source("intrinsics", "intrinsics", SOURCE), "sm_90a")


def launched(ptx: str, entry: str, x: Array, out: Array, threads: int = 256) -> Report:
    memory = Memory()
    args = (memory.bind("x", x, access="rw"), memory.bind("out", out, access="rw"))
    return run(ptx, Launch("intrinsics", entry, (1, 1, 1), (threads, 1, 1), args), memory)


def words() -> Array:
    """Return two times 256 words, with the largest and smallest bytes and halves among them."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 1 << 32, (2, 256)).astype(np.uint32)
    odd = rng.choice(np.array([0, 1, 0x7F, 0x80, 0x81, 0xFF], np.uint8), (2, 128, 4))
    x[:, ::2] = odd.view(np.uint32)[:, :, 0]
    return x


def test_parts_of_registers(ptx: str) -> None:
    x, out = words(), np.zeros((len(PARTS) + 2, 256), np.uint32)
    assert launched(ptx, "parts", x, out).ok
    for row, (name, (size, sign, function)) in zip(out, PARTS.items(), strict=False):
        a, b = x.view(f"{sign}{size}").astype(np.int64)
        assert (row.view(f"u{size}") == function(a, b).astype(f"u{size}")).all(), name
    for row, kind in zip(out[-2:], ("i1", "u2"), strict=True):
        a, b = x.view(kind).astype(np.int64)
        assert (row == np.abs(a - b).reshape(256, -1).sum(axis=1)).all(), kind


WIDE = """.version 8.4 .target sm_90 .address_size 64 .entry k(.param .u64 x, .param .u64 out) {
  .reg .b64 from, to, at, lo, hi; .reg .b32 t; .reg .b128 a, b, c; .reg .f32 f<4>; .reg .pred p;
  ld.param.u64 from, [x]; ld.param.u64 to, [out]; mov.u32 t, %tid.x; mad.wide.u32 at, t, 16, to;
  ld.global.b128 a, [from]; mov.b128 b, a; mov.b128 {lo, hi}, b; mov.b128 c, {hi, lo};
  setp.eq.u32 p, t, 0; @p st.global.b128 [at], c; bar.warp.sync 0xffffffff;
  cvt.u64.u32 lo, t; mov.b128 b, {lo, hi}; add.u64 lo, lo, 1; mov.b128 c, {lo, hi};
  atom.global.cas.b128 a, [from + 16], b, c; st.global.b128 [at + 16], a;
  mov.b128 b, {hi, lo}; atom.global.exch.b128 a, [from + 32], b; st.global.b128 [at + 528], a;
  cvt.rn.f32.u32 f0, t; mov.f32 f1, 0f3F800000;
  @!p atom.global.add.v2.f32 {f2, f3}, [from + 48], {f0, f1}; @p red.global.v4.f32.add [from + 64], {f1, f1, f0, f1};
  ret; }
"""


def test_128_bits_and_vectors_of_atomics() -> None:
    x, out = np.zeros((6, 2), np.uint64), np.zeros((80, 2), np.uint64)
    high = 0xFEDCBA9876543210
    x[0] = 0x0123456789ABCDEF, high
    x[1] = 0, high
    assert launched(WIDE, "k", x, out, 32).ok
    assert out[0].tolist() == [high, 0x0123456789ABCDEF]
    # Each lane replaces its own number by the next one.
    t = np.arange(32)
    assert (out[1:33, 0] == t).all()
    assert (out[1:33, 1] == high).all()
    assert x[1].tolist() == [32, high]
    assert (out[34:65, 1] == t[1:]).all()
    assert x[2].tolist() == [high, 32]
    floats = x[3:].view(np.float32).ravel()
    assert floats[:2].tolist() == [t[1:].sum(), 31]
    assert floats[4:8].tolist() == [1, 1, 0, 1]


INT128 = """__global__ void wide(const __int128* x, __int128* out, double* d) {
  const int t = threadIdx.x; const __int128 a = x[t], b = x[t + 32];
  out[t] = a * b; out[32 + t] = a / b; out[64 + t] = a % b; out[96 + t] = (unsigned __int128)a / (unsigned __int128)b;
  out[128 + t] = (a >> (t * 4)) + ((unsigned __int128)b << (t * 4 + 1)); out[160 + t] = a < b ? a - b : -a;
  d[t] = (double)a;
}
"""


def test_integers_of_128_bits() -> None:
    rng = np.random.default_rng(1)
    x = rng.integers(0, 1 << 64, (64, 2), np.uint64)
    x[::3, 1] = np.uint64(0xFFFFFFFFFFFFFFFF)
    x[1::3, 1] >>= np.uint64(50)
    out, d = np.zeros((192, 2), np.uint64), np.zeros(32)
    matmill.emulate(INT128, "wide", 1, 32, x, out, d).raise_if()

    def number(pair: Array) -> int:
        whole = int(pair[0]) | int(pair[1]) << 64
        return whole - (1 << 128) if whole >> 127 else whole

    mask = (1 << 128) - 1
    for t in range(32):
        a, b = number(x[t]), number(x[t + 32])
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        shifted = (a >> 4 * t) + ((b & mask) << 4 * t + 1)
        expected = [a * b, quotient, a - quotient * b, (a & mask) // (b & mask), shifted, a - b if a < b else -a]
        assert [number(out[32 * n + t]) & mask for n in range(6)] == [e & mask for e in expected], t
        assert d[t] == float(a)


@pytest.mark.parametrize(
    "line",
    [
        "sub.u16x2 r, r, r;", "add.sat.s16x2 r, r, r;", "vadd4.u32.u32.u32.sat.add r, r, r, r;",
        "vadd4.u32.u32 r, r, r, r;", "mov.b128 r, r;", "atom.global.add.b128 w, [d], w;",
        "atom.global.add.v2.f32 {f, f}, [d], f;", "sin.approx.4pi.f32 f, f;",
    ],
)  # fmt: skip
def test_forms_that_ptx_does_not_have(line: str) -> None:
    text = f""".version 8.4 .target sm_90 .address_size 64 .entry k() {{ .reg .b32 r; .reg .b64 d; .reg .b128 w;
    .reg .f32 f; {line} ret; }}"""
    with pytest.raises(EmulationError):
        run(text, Launch("intrinsics", "k", (1, 1, 1), (32, 1, 1), ()), Memory())
