"""One mma.sync on whole matrices: they are packed into the registers of a warp, and D is unpacked."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill.emulator import Memory, run
from matmill.launch import Launch

Array = NDArray[Any]
_LANE = np.arange(32)
_G, _T = _LANE // 4, _LANE % 4
_BITS = {"e4m3": 8, "e5m2": 8, "s4": 4, "u4": 4, "b1": 1}


def _factor(patterns: Array, bits: int) -> Array:
    """Return A, or the transpose of B, of bit patterns (unsigned [rows, k]) as registers: uint32[registers, 32]."""
    rows, k = patterns.shape
    each, tall = 32 // bits, rows // 8
    registers = []
    for r in range(k // (4 * each) * tall):
        columns = 4 * each * (r // tall) + each * _T
        elements = [patterns[8 * (r % tall) + _G, columns + e].astype(np.uint32) for e in range(each)]
        registers.append(np.bitwise_or.reduce([x << np.uint32(bits * e) for e, x in enumerate(elements)]))
    return np.stack(registers)


def _spots(m: int) -> tuple[Array, Array]:
    """Return the rows and columns of C that lanes hold, element by element: [elements, 32] each."""
    elements = range(m * 8 // 32)
    return np.stack([_G + 8 * (n // 2) for n in elements]), np.stack([2 * _T + n % 2 for n in elements])


def product(kinds: tuple[str, str, str], a: Array, b: Array, c: Array, more: str = "") -> Array:
    """Return D of ``mma.sync``: types of A, B and D; bit patterns of A [m, k] and B [k, 8].

    C [m, 8] has D's NumPy type.
    """
    kind_a, kind_b, kind_d = kinds
    m, k = a.shape
    spots = _spots(m)
    sums = np.ascontiguousarray(c[spots].T).view(np.uint32).T
    words = [_factor(a, _BITS[kind_a]), _factor(np.ascontiguousarray(b.T), _BITS[kind_b]), sums]
    names = [[f"{part}{n}" for n in range(len(registers))] for part, registers in zip("abc", words, strict=True)]
    flat = [name for part in names for name in part]
    lists = ["{" + ", ".join(part) + "}" for part in names]
    loads = "".join(f"ld.global.b32 {name}, [at + {128 * n}];" for n, name in enumerate(flat))
    stores = "".join(f"st.global.b32 [at + {128 * (len(flat) + n)}], {name};" for n, name in enumerate(names[2]))
    kind = {"f32": "f32", "f16": "b32", "s32": "s32"}[kind_d]
    text = f""".version 8.7 .target sm_90a .address_size 64 .entry k(.param .u64 x) {{
    .reg .b64 at, more; .reg .u32 t; .reg .b32 {", ".join(names[0] + names[1])}; .reg .{kind} {", ".join(names[2])};
    ld.param.u64 at, [x]; mov.u32 t, %tid.x; mul.wide.u32 more, t, 4; add.u64 at, at, more; {loads}
    mma.sync.aligned.m{m}n8k{k}.row.col.{kind_d}.{kind_a}.{kind_b}.{kind_d}{more} {lists[2]}, {lists[0]}, {lists[1]},
    {lists[2]}; {stores} ret; }}"""
    held = np.ascontiguousarray(np.concatenate([*words, sums]))
    memory = Memory()
    launch = Launch("mma", "k", (1, 1, 1), (32, 1, 1), (memory.bind("x", held, access="rw"),))
    counters = run(text, launch, memory).counters
    assert counters.hmma + counters.imma == 1
    d = np.empty_like(c)
    d[spots] = np.ascontiguousarray(held[-len(sums) :].T).view(c.dtype).T
    return d
