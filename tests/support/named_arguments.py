"""A launch's arguments by the names of its parameters, for kernels whose parameters are generated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from matmill.kernel import Kernel, Program
from matmill.ladders.registry import LADDERS
from matmill.launch import Launch
from matmill.registry import PRODUCTION, TRANSPOSE_ADD_KERNELS


def _programs() -> Iterator[Program]:
    rungs = (rung for name in ("inner", "transpose_add") for rung in LADDERS[name].rungs)
    kernels: list[Kernel[Any]] = [one.kernel for one in (*PRODUCTION, *TRANSPOSE_ADD_KERNELS, *rungs)]
    for kernel in kernels:
        yield kernel
        yield from kernel.before
        yield from kernel.after


_NAMES = {
    program.entry: [name for name, _ in program.parameters.fields] for program in _programs() if program.parameters
}


def named(launch: Launch) -> dict[str, Any]:
    """Empty for an entry point that spells out its parameters."""
    names = _NAMES.get(launch.entry)
    return {} if names is None else dict(zip(names, launch.args, strict=True))
