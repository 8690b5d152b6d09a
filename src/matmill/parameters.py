"""A kernel's parameters: declared once, emitted to the device, and given values on the host by name.

The device code gets the macro ``PARAMETERS``, an entry point's parameter list, ``struct Args`` with the same fields but
the tensor maps, and the macro ``ARGUMENTS``, which fills it. An entry point that took the struct itself made short
calls up to 1.22 times as long on an H200 (2026-11-23, ``benchmarks/results/launch_remarks.md``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from matmill.dtypes import DType
from matmill.errors import ArgumentError
from matmill.launch import Argument, Pointer, Struct, TensorMap

#: C++ and NumPy types of the numbers that a parameter may be, integers with their range. ``Acc`` is the accumulator's
#: type; a number of it is a struct for complex elements.
_INTEGERS: dict[str, tuple[type[np.generic], int, int]] = {
    "int": (np.int32, -(2**31), 2**31 - 1),
    "unsigned": (np.uint32, 0, 2**32 - 1),
    "Index": (np.int64, -(2**63), 2**63 - 1),
}
_REALS: dict[str, type[np.generic]] = {"float": np.float32, "double": np.float64}
_TENSOR_MAP = "matmill::TensorMap"


@dataclass(frozen=True)
class Parameters:
    """Names and C++ types of a kernel's parameters, in order.

    Types are pointers (``const Scalar*``, ``Acc*``, ``unsigned*``), the numbers ``int``, ``unsigned``, ``Index`` (64
    bits), ``float``, ``double`` and ``Acc``, and ``matmill::TensorMap``.

    >>> from matmill.dtypes import F16
    >>> vector = Parameters.of(A="const Scalar*", n="int", alpha="Acc")
    >>> print(vector.cxx(F16))
    struct Args {
      const Scalar* A;
      int n;
      float alpha;
    };
    #define PARAMETERS const Scalar* A, int n, float alpha
    #define ARGUMENTS Args{A, n, alpha}
    >>> vector.pack(F16, A=Pointer("A", 256), n=5, alpha=0.5)
    (Pointer(name='A', address=256), np.int32(5), np.float32(0.5))
    """

    fields: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, **fields: str) -> Parameters:
        """Return parameters from keyword arguments, in their order."""
        return cls(tuple(fields.items()))

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(name for name, _ in self.fields)

    @property
    def headers(self) -> tuple[str, ...]:
        """The files in ``include/`` that define the fields' types."""
        return ("matmill/ptx/tensor_map.cuh",) if any(kind == _TENSOR_MAP for _, kind in self.fields) else ()

    def cxx(self, dtype: DType) -> str:
        """Return the struct and the two macros, for elements of ``dtype``, which the source calls ``Scalar``."""
        types = {"Acc": dtype.accumulator.cxx, "Index": "long long"}
        fields = []
        for name, kind in self.fields:
            base = kind.removeprefix("const ").rstrip("*")
            cxx = "Scalar::Factor" if kind == "Acc" and dtype.part else types.get(base, base)
            fields.append((f"{kind.replace(base, cxx)} {name}", name, kind))
        # TMA reads a tensor map from the parameter itself, so that it is not copied.
        passed = [f"const __grid_constant__ {field}" if kind == _TENSOR_MAP else field for field, _, kind in fields]
        copied = [(field, name) for field, name, kind in fields if kind != _TENSOR_MAP]
        return "\n".join(
            [
                "struct Args {",
                *(f"  {field};" for field, _ in copied),
                "};",
                f"#define PARAMETERS {', '.join(passed)}",
                f"#define ARGUMENTS Args{{{', '.join(name for _, name in copied)}}}",
            ]
        )

    def pack(self, dtype: DType, **values: Argument | float) -> tuple[Argument, ...]:
        """Return the arguments of a launch in order: ``values`` by name, numbers as wide as their fields.

        Raises :class:`~matmill.errors.ArgumentError` for missing or surplus names, for a value of another kind than its
        field, and for an integer outside its field's range.
        """
        if values.keys() != self._names:
            raise ArgumentError(
                argument="parameters",
                got=", ".join(sorted(values)),
                wanted=", ".join(name for name, _ in self.fields),
                fix="Give each declared parameter once.",
            )
        return tuple(_as_field(name, kind, values[name], dtype) for name, kind in self.fields)


def _as_field(name: str, kind: str, value: Argument | float, dtype: DType) -> Argument:
    if kind in _INTEGERS:
        number, least, most = _INTEGERS[kind]
        if isinstance(value, int | float | np.number) and least <= value <= most and int(value) == value:
            return number(int(value))
    elif kind.endswith("*") or kind == _TENSOR_MAP:
        if isinstance(value, Pointer if kind.endswith("*") else TensorMap):
            return value
    elif isinstance(value, Struct) and dtype.part is not None and kind == "Acc":
        return value
    elif isinstance(value, int | float | np.number) and dtype.part is None:
        if kind != "Acc":
            return _REALS[kind](value)
        # The accumulator's number wraps, or becomes infinite, as C++'s would. An int may need more digits than a float.
        return dtype.accumulator.scalar(value if isinstance(value, int) else float(value))
    raise ArgumentError(
        argument=f"parameter {name}", got=repr(value), wanted=f"a value of type {kind}", fix="Pass one that fits it."
    )
