"""Kernels of CuPy and of cuda-core, which have their source or their PTX."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from matmill.errors import ArgumentError
from matmill.testing.languages import Call, PythonLaunch


def lower(kernel: Any, call: Call) -> PythonLaunch:
    """Return a launch of a RawKernel or RawModule, a Program or an ObjectCode, by the kernel's name in C++."""
    return _raw(kernel, call) if type(kernel).__name__.startswith("Raw") else _core(kernel, call)


def _raw(kernel: Any, call: Call) -> PythonLaunch:
    path = Path(kernel.file_path or "")
    if path.suffix in {".cubin", ".fatbin"}:
        raise _without_text(f"machine code, {path.name}")
    return PythonLaunch(
        kernel.code or path.read_text(encoding="utf-8"), call.entry or getattr(kernel, "name", None), call.args,
        call.named, cooperative=kernel.enable_cooperative_groups, include=(path.parent,),
        options=tuple(kernel.options),
    )  # fmt: skip


def _core(program: Any, call: Call) -> PythonLaunch:
    code = program
    if hasattr(program, "compile"):
        # cuda-core asks whether the driver, which there may be none of, can load its PTX.
        newest: dict[str, Any] = {"driver_version": lambda: (99, 0, 0)}
        with patch.multiple(sys.modules["cuda.core._program"], create=True, **newest):
            code = program.compile("ptx")
    if str(code.code_type) != "ptx" or not isinstance(code.code, bytes):
        raise _without_text(f"{code.code_type} of cuda-core")
    name = code.symbol_mapping.get(call.entry, call.entry)
    name = name.decode() if isinstance(name, bytes) else name
    return PythonLaunch(code.code.decode().rstrip("\0"), name, call.args, call.named, spelled=call.entry or "")


def _without_text(got: str) -> ArgumentError:
    wanted, fix = "CUDA C++ or PTX, which the emulator executes", 'Give the source, or what compile("ptx") returns.'
    return ArgumentError(argument="source", got=got, wanted=wanted, fix=fix)
