"""A case: one small kernel and its arrays, to be run on a GPU and in the emulator, and a comparison of what they left.

Cases of single instructions are made from a table: every thread runs each instruction once on its own operands and
stores the bits of the result in a 64-bit slot, so that one launch covers a family over thousands of values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from matmill.emulator import Memory, Report, run
from matmill.jit.compile import Binary, compile_ptx, compile_source
from matmill.jit.source import Source
from matmill.launch import Argument, Dim3, Launch

Array = NDArray[Any]
TARGET = "sm_90a"
BLOCK = 128
POISON = 0xDEADBEEFDEADBEEF
# CUDA C++ type, inline-assembly constraint and bits of a value, by the name that the tables use.
C_TYPES = {
    "u2": ("unsigned short", "h", "(unsigned long long)d"),
    "u4": ("unsigned", "r", "(unsigned long long)d"),
    "u8": ("unsigned long long", "l", "d"),
    "f4": ("float", "f", "(unsigned long long)__float_as_uint(d)"),
    "f8": ("double", "d", "(unsigned long long)__double_as_longlong(d)"),
}
# Halves travel as 16-bit integers; "x2" are two of them in one word.
_CARRIER = {"f2": "u2", "bf": "u2", "f2x2": "u4", "bfx2": "u4", "tf": "u4"}
_MASKS = {"f4": (0x7F800000, 0x7FFFFFFF), "f8": (0x7FF0000000000000, 0x7FFFFFFFFFFFFFFF), "f2": (0x7C00, 0x7FFF),
          "bf": (0x7F80, 0x7FFF), "tf": (0x7F800000, 0x7FFFFFFF)}  # fmt: skip
_LARGEST = {"f4": float(np.finfo(np.float32).max), "f8": float(np.finfo(np.float64).max)}


@dataclass(frozen=True)
class Op:
    """One instruction: PTX with %0 for the result and %1, %2, … for the operands, and the result's type.

    ``near`` is (relative, absolute) where PTX leaves the last bits open, None where the bits must be equal.
    """

    ptx: str
    out: str
    near: tuple[float, float] | None = None


@dataclass(frozen=True, eq=False)
class Case:
    """A kernel with entry ``k`` and its array arguments, of which ``outputs`` are compared.

    ``differences(gpu, emulator)`` describes what differs, in a list that is empty where they agree.
    A table has its rows in ``ops`` and their values in ``operands``.
    """

    name: str
    source: str
    arrays: Callable[[], dict[str, Array]]
    outputs: tuple[str, ...]
    grid: Dim3 = (1, 1, 1)
    block: Dim3 = (BLOCK, 1, 1)
    values: tuple[np.generic, ...] = ()
    shared: int = 0
    differences: Callable[[dict[str, Array], dict[str, Array]], list[str]] | None = field(default=None)
    ops: tuple[Op, ...] = ()
    operands: tuple[Array, ...] = ()

    def binary(self, target: str = TARGET) -> Binary:
        """Return the compiled kernel."""
        return compile_source(Source(f"agreement.{self.name}", "k", self.source), target)

    def launch(self, pointers: Sequence[Argument]) -> Launch:
        """Return the launch, with these for the arrays."""
        return Launch(self.name, "k", self.grid, self.block, (*pointers, *self.values), self.shared)

    def emulate(self, target: str = TARGET, **options: Any) -> tuple[dict[str, Array], Report]:
        """Return the arrays after a run in the emulator with ``run``'s options, and its report."""
        memory, arrays = Memory(), self.arrays()
        pointers = [memory.bind(name, array, access="rw") for name, array in arrays.items()]
        ptx = compile_ptx(Source(f"agreement.{self.name}", "k", self.source), target)
        return arrays, run(ptx, self.launch(pointers), memory, **options)

    def compare(self, gpu: dict[str, Array], emulator: dict[str, Array]) -> list[str]:
        """Return what differs, in words."""
        if self.differences is not None:
            return self.differences(gpu, emulator)
        result = []
        for name in self.outputs:
            wrong = np.flatnonzero(gpu[name] != emulator[name])
            if len(wrong):
                i = int(wrong[0])
                result.append(
                    f"{name}: {len(wrong)} of {gpu[name].size} differ, first [{i}]: "
                    f"GPU {int(gpu[name].flat[i]):#x}, emulator {int(emulator[name].flat[i]):#x}"
                )
        return result


def table(name: str, operands: Sequence[tuple[str, Array]], ops: Sequence[Op]) -> Case:
    """Make a case that runs every instruction of ``ops`` on all ``operands``: (type, values as unsigned bits)."""
    count = len(operands[0][1])
    types = [_CARRIER.get(kind, kind) for kind, _ in operands]
    parameters = "".join(f"const {C_TYPES[t][0]}* a{n}, " for n, t in enumerate(types))
    loads = "".join(f"  const {C_TYPES[t][0]} x{n} = a{n}[i];\n" for n, t in enumerate(types))
    inputs = ", ".join(f'"{C_TYPES[t][1]}"(x{n})' for n, t in enumerate(types))
    lines = []
    for n, op in enumerate(ops):
        c_type, constraint, bits = C_TYPES[_CARRIER.get(op.out, op.out)]
        lines.append(
            f'  {{ {c_type} d; asm volatile("{op.ptx}" : "={constraint}"(d) : {inputs}); o[{n} * n + i] = {bits}; }}\n'
        )
    source = (
        f'extern "C" __global__ void k({parameters}unsigned long long* o, int n) {{\n'
        f"  const int i = blockIdx.x * blockDim.x + threadIdx.x;\n  if (i >= n) return;\n{loads}{''.join(lines)}}}\n"
    )

    def arrays() -> dict[str, Array]:
        result = {f"a{n}": np.array(values) for n, (_, values) in enumerate(operands)}
        return {**result, "o": np.full(len(ops) * count, POISON, np.uint64)}

    def differences(gpu: dict[str, Array], emulator: dict[str, Array]) -> list[str]:
        return compare_slots(ops, [values for _, values in operands], gpu["o"], emulator["o"])

    return Case(
        name, source, arrays, ("o",), (-(-count // BLOCK), 1, 1), values=(np.int32(count),), differences=differences,
        ops=tuple(ops), operands=tuple(values for _, values in operands),
    )  # fmt: skip


def compare_slots(ops: Sequence[Op], inputs: Sequence[Array], gpu: Array, emulator: Array) -> list[str]:
    """Compare each instruction whose results differ: how many do, and the first three with their operands."""
    result = []
    for op, a, b in zip(ops, gpu.reshape(len(ops), -1), emulator.reshape(len(ops), -1), strict=True):
        wrong = np.flatnonzero(~same(op, a, b))
        if len(wrong):
            shown = [
                f"({', '.join(f'{int(x[i % len(x)]):#x}' for x in inputs)}): "
                f"GPU {int(a[i]):#x}, emulator {int(b[i]):#x}"
                for i in wrong[:3]
            ]
            result.append(f"{op.ptx}: {len(wrong)} of {len(a)} differ: " + "; ".join(shown))
    return result


def same(op: Op, a: Array, b: Array) -> NDArray[np.bool_]:
    """Say which results count as equal: the same bits, two NaNs, or near enough where PTX allows it."""
    if op.out.endswith("x2"):
        half = op.out.removesuffix("x2")
        low, high = np.uint64(0xFFFF), np.uint64(16)
        return same_values(half, a & low, b & low) & same_values(half, a >> high, b >> high)
    equal = same_values(op.out, a, b)
    if op.near is None:
        return equal
    relative, absolute = op.near
    # Infinity counts as the largest number: an error of the last bit may lead from one to the other.
    largest = _LARGEST.get(op.out, 65504.0)
    with np.errstate(invalid="ignore", over="ignore"):
        x, y = (np.clip(_as_float(op.out, v), -largest, largest) for v in (a, b))
        return np.asarray(equal | (np.abs(x - y) <= relative * np.abs(y) + absolute))


def same_values(kind: str, a: Array, b: Array) -> NDArray[np.bool_]:
    """Tell which bits are equal, or two NaNs of any payload. Of tf32 the upper 19 bits count."""
    if kind not in _MASKS:
        return np.asarray(a == b)
    infinity, size = (np.uint64(m) for m in _MASKS[kind])
    both_nan = (a & size > infinity) & (b & size > infinity)
    shift = np.uint64(13 if kind == "tf" else 0)
    return np.asarray((a >> shift == b >> shift) | both_nan)


def _as_float(kind: str, bits: Array) -> Array:
    if kind == "f8":
        return bits.view(np.float64)
    if kind == "f4":
        return bits.astype(np.uint32).view(np.float32).astype(np.float64)
    if kind == "bf":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return bits.astype(np.uint16).view(np.float16).astype(np.float64)
