"""PTX for tests: hand-written snippets run once per thread, and CUDA C++ compiled with NVRTC."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, TypedDict

import numpy as np
from numpy.typing import DTypeLike, NDArray

from matmill.emulator import Memory, Report, run
from matmill.jit.nvrtc import Request, build
from matmill.launch import Argument, Dim3, Launch

HEADER = ".version 8.3\n.target sm_90a\n.address_size 64\n"
BLOCK = 64
Array = NDArray[Any]


class Options(TypedDict, total=False):
    """The options of ``run``."""

    races: bool
    late_copies: bool
    schedule: int
    counters: bool
    threads: int


@cache
def compile_ptx(source: str, *options: str) -> str:
    """Return the PTX that NVRTC makes of CUDA C++, with source lines."""
    flags = ("--gpu-architecture=compute_90", "-lineinfo", "--std=c++17", *options)
    answer = build(Request("test.cu", source, (), flags), machine_code=False)
    assert answer.compiled, answer.log
    return answer.ptx


def entry(body: str, parameters: Sequence[str] = (), declarations: str = "") -> str:
    """Return a module with one entry ``k``.

    Parameters are pointers with these names, loaded into registers of that name.
    """
    declared = ", ".join(f".param .u64 p_{name}" for name in parameters)
    loads = "\n".join(f".reg .b64 {name}; ld.param.u64 {name}, [p_{name}];" for name in parameters)
    return f"{HEADER}{declarations}\n.visible .entry k({declared})\n{{\n{loads}\n{body}\nret;\n}}\n"


def launch(
    ptx: str,
    arrays: dict[str, Array],
    *values: np.generic,
    grid: Dim3 = (1, 1, 1),
    block: Dim3 = (32, 1, 1),
    name: str = "k",
    shared: int = 0,
    options: Options | None = None,
) -> Report:
    """Run an entry on arrays, bound read-write and passed first, and scalars; ``options`` are those of ``run``."""
    memory = Memory()
    arguments: list[Argument] = [memory.bind(key, array, access="rw") for key, array in arrays.items()]
    return run(ptx, Launch(name, name, grid, block, (*arguments, *values), shared), memory, **(options or {}))


def per_thread(code: str, *inputs: Array, out: DTypeLike, outs: int = 1) -> Array:
    """Run ``code`` once per element of ``inputs``: it reads registers a0, a1, … and writes d (or d0, d1, …).

    Returns the results, [outs, n] where there are several. Element types are passed as bits of their size.
    """
    inputs = tuple(np.atleast_1d(x) for x in inputs)
    count = len(inputs[0])
    blocks = -(-count // BLOCK)
    results = [f"d{n}" for n in range(outs)] if outs > 1 else ["d"]
    dtype = np.dtype(out)
    padded = [np.resize(x, blocks * BLOCK) for x in inputs]
    arrays: dict[str, Array] = {f"in{n}": x for n, x in enumerate(padded)}
    arrays |= {f"out{n}": np.zeros(blocks * BLOCK, dtype) for n in range(outs)}
    lines = [
        ".reg .b32 t, ntid, cta; .reg .b64 i, at; .reg .pred p, q;",
        "mov.u32 t, %tid.x; mov.u32 ntid, %ntid.x; mov.u32 cta, %ctaid.x;",
        "mad.lo.u32 t, cta, ntid, t; cvt.u64.u32 i, t;",
    ]
    for n, x in enumerate(padded):
        size = x.dtype.itemsize
        lines.append(f".reg .b{max(8 * size, 16)} a{n}; mad.lo.u64 at, i, {size}, in{n};")
        lines.append(f"ld.global.b{8 * size} a{n}, [at];")
    lines += [f".reg .b{max(8 * dtype.itemsize, 16)} {name};" for name in results]
    lines.append(code)
    for n, name in enumerate(results):
        lines.append(f"mad.lo.u64 at, i, {dtype.itemsize}, out{n}; st.global.b{8 * dtype.itemsize} [at], {name};")
    launch(entry("\n".join(lines), list(arrays)), arrays, grid=(blocks, 1, 1), block=(BLOCK, 1, 1))
    result = np.stack([arrays[f"out{n}"][:count] for n in range(outs)])
    return result if outs > 1 else result[0]
