"""Kernels of Python's languages for GPUs, as their authors' objects: numba-cuda, Triton, CuPy, cuda-core.

A kernel becomes a :class:`PythonLaunch`: CUDA C++ or PTX, and a value for each of its parameters. This module imports
none of the libraries; each module beside it is imported for kernels of its own.
"""

from __future__ import annotations

import inspect
import linecache
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from keyword import iskeyword
from pathlib import Path
from typing import Any, NamedTuple

from matmill.cuda_source.signature import Parameter
from matmill.errors import ArgumentError, CompileError
from matmill.launch import Dim3
from matmill.testing.kernel import PtxKernel, load

_FILE = re.compile(r'^\s*\.file\s+\d+\s+"([^"]+\.py|[^"]*ipython-input[^"]*)"', re.MULTILINE)
# The module that takes a kernel, by the package and the name of a class among its bases.
_MODULES = {
    ("numba", "CUDADispatcher"): "numba_kernels", ("triton", "KernelInterface"): "triton_kernels",
    ("cupy", "RawKernel"): "source_kernels", ("cupy", "RawModule"): "source_kernels",
    ("cuda", "Program"): "source_kernels", ("cuda", "ObjectCode"): "source_kernels",
}  # fmt: skip


class Call(NamedTuple):
    """Arguments of a call of :func:`matmill.emulate`."""

    entry: str | None
    grid: Any
    block: Any
    args: Sequence[object]
    named: Mapping[str, object]
    target: str


@dataclass(frozen=True)
class PythonLaunch:
    """One launch of a kernel of another language.

    ``text`` is CUDA C++ or PTX with the kernel ``entry``; ``spelled`` is the kernel's name for messages. ``args`` are
    values of the text's parameters in order, and ``named`` by name; ``names`` are those that messages show.
    ``padding`` has values for further parameters. The rest is as for :func:`matmill.emulate`.
    """

    text: str
    entry: str | None
    args: Sequence[object] = ()
    named: Mapping[str, object] = field(default_factory=dict)
    spelled: str = ""
    names: tuple[str, ...] = ()
    padding: tuple[object, ...] = ()
    grid: Dim3 | None = None
    block: Dim3 | None = None
    shared: int = 0
    cluster: Dim3 | None = None
    cooperative: bool = False
    pdl: bool = False
    include: tuple[Path, ...] = ()
    options: tuple[str, ...] = ()

    def load(self, include: Sequence[Path], options: Sequence[str], target: str) -> tuple[PtxKernel, Sequence[object]]:
        """Return the compiled kernel with its author's names and lines, and the arguments in its order."""
        kernel = load(self.text, self.entry, (*self.include, *include), (*self.options, *options), target)
        unit, params = kernel.unit, kernel.function.params
        args = (*self.args, *self.padding[: len(params) - len(self.args)])
        lines, paths = dict(unit.lines), dict(unit.paths)
        for path in map(Path, _FILE.findall(self.text)):
            paths[path.name] = str(path)
            rows = enumerate(linecache.getlines(str(path)), 1)
            lines |= {f"{path.name}:{n}": row.rstrip("\n") for n, row in rows}
        names = (*self.names, *(each.name for each in params[len(self.names) :]))
        shown = tuple(Parameter(name, "") for name in names) if self.names else unit.parameters
        unit = replace(unit, lines=lines, paths=paths, spelled=self.spelled or unit.spelled, parameters=shown)
        return replace(kernel, unit=unit), in_order(kernel, args, self.named)


def python_launch(kernel: object, call: Call) -> PythonLaunch:
    """Return a launch of a kernel of numba-cuda, Triton, CuPy or cuda-core.

    Raises :class:`~matmill.errors.ArgumentError` for other objects, and for what their modules refuse.
    """
    if isinstance(kernel, PythonLaunch):
        return kernel
    for base in type(kernel).__mro__:
        module = _MODULES.get((base.__module__.partition(".")[0], base.__name__))
        if module is not None:
            launch: PythonLaunch = import_module(f"{__name__}.{module}").lower(kernel, call)
            return launch
    raise ArgumentError(
        argument="source",
        got=f"a {type(kernel).__module__}.{type(kernel).__qualname__}",
        wanted="CUDA C++ or PTX (a path or a text), or a kernel of numba-cuda, Triton, CuPy or cuda-core",
        fix="Give the kernel as its library has it before a launch, or its PTX.",
    )


def in_order(kernel: PtxKernel, args: Sequence[object], named: Mapping[str, object]) -> Sequence[object]:
    """Return a kernel's arguments in its order, those by name among them."""
    names = [_identifier(each.name) for each in kernel.unit.parameters or kernel.function.params]
    kinds = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names if named]
    values = {_identifier(name): value for name, value in named.items()}
    return bound(inspect.Signature(kinds), args, values, kernel.unit.spelled) if named else args


def _identifier(name: str) -> str:
    """Return a parameter's name as one that ``inspect`` takes, which refuses Python's keywords.

    >>> _identifier("in"), _identifier("out")
    ('in_', 'out')
    """
    return f"{name}_" if iskeyword(name) else name


def bound(
    signature: inspect.Signature, args: Sequence[object], named: Mapping[str, object], kernel: str
) -> Sequence[object]:
    """Return arguments by position and by name in the order of a signature, with its defaults."""
    try:
        result = signature.bind(*args, **named)
    except TypeError as problem:
        raise refused(str(problem), f"{kernel}({', '.join(signature.parameters)})") from problem
    result.apply_defaults()
    return result.args


def refused(got: str, wanted: str) -> ArgumentError:
    """Return the error for arguments that are not a kernel's."""
    fix = "Give each parameter once, by position or by name. Other keywords are those of matmill.emulate."
    return ArgumentError(argument="arguments", got=got, wanted=wanted, fix=fix)


def uncompiled(kernel: str, got: str, problem: Exception) -> CompileError:
    """Return the error for code that a language's compiler refuses, with its words."""
    wanted, fix = "code that it compiles", f"It says:\n{problem}"
    return CompileError(argument=f"kernel {kernel}", got=f"code that {got}", wanted=wanted, fix=fix, log=str(problem))


def capability(target: str) -> tuple[int, int]:
    """Return the compute capability of a target.

    >>> capability("sm_90a")
    (9, 0)
    """
    return divmod(int(re.sub(r"\D", "", target)), 10)
