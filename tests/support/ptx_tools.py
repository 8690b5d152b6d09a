"""PTX for tests: hand-written entries, and CUDA C++ compiled with NVRTC."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from matmill.emulator import Memory, Report, run
from matmill.jit.nvrtc import CompileRequest, build
from matmill.launch import Argument, Dim3, Launch

HEADER = ".version 8.3\n.target sm_90a\n.address_size 64\n"
Array = NDArray[Any]


class Options(TypedDict, total=False):
    """The options of ``run``."""

    races: bool
    late_copies: bool
    schedule: int
    counters: bool
    threads: int
    timeline: bool


@cache
def compile_ptx(source: str, *options: str) -> str:
    """Return the PTX that NVRTC makes of CUDA C++, with source lines."""
    flags = ("--gpu-architecture=compute_90", "-lineinfo", "--std=c++17", *options)
    answer = build(CompileRequest("test.cu", source, (), flags), machine_code=False)
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
