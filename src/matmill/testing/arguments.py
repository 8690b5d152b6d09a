"""A caller's values as arguments of a launch: arrays are bound in place, numbers get the parameter's type."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from matmill.arrays import host_array
from matmill.cuda_source.signature import Parameter
from matmill.emulator import Hazard, Memory
from matmill.emulator.frontend.syntax import Variable
from matmill.errors import ArgumentError
from matmill.launch import Argument, Pointer, Struct, TensorMap
from matmill.testing.handles import HANDLES, with_handles
from matmill.textures import Surface, Texture

# Element types by their names in C++; other types (structs) are not in the table.
_BYTES = ("u1", "i1", "?")
_ELEMENTS: dict[str, tuple[str, ...]] = {
    "float": ("f4",), "float2": ("f4", "c8"), "float3": ("f4",), "float4": ("f4",),
    "double": ("f8",), "double2": ("f8", "c16"), "double4": ("f8",),
    "int": ("i4", "u4"), "signed int": ("i4", "u4"), "unsigned": ("i4", "u4"), "unsigned int": ("i4", "u4"),
    "int2": ("i4", "u4"), "int4": ("i4", "u4"), "uint": ("i4", "u4"), "int32_t": ("i4", "u4"), "uint32_t": ("i4", "u4"),
    "short": ("i2", "u2"), "unsigned short": ("i2", "u2"), "int16_t": ("i2", "u2"), "uint16_t": ("i2", "u2"),
    "long": ("i8", "u8"), "unsigned long": ("i8", "u8"), "long long": ("i8", "u8"), "size_t": ("i8", "u8"),
    "unsigned long long": ("i8", "u8"), "int64_t": ("i8", "u8"), "uint64_t": ("i8", "u8"),
    "unsigned long long int": ("i8", "u8"), "long long int": ("i8", "u8"),
    "char": _BYTES, "signed char": _BYTES, "unsigned char": _BYTES, "bool": _BYTES, "uchar4": _BYTES,
    "half": ("f2", "u2"), "__half": ("f2", "u2"), "half2": ("f2", "u4"), "__half2": ("f2", "u4"),
    "__nv_bfloat16": ("bfloat16", "u2"), "__nv_bfloat162": ("bfloat16", "u4"),
}  # fmt: skip
_NUMBERS: dict[str, np.dtype[Any]] = {
    **{f"s{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"{kind}{bits}": np.dtype(f"u{bits // 8}") for kind in "ub" for bits in (8, 16, 32, 64)},
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}


@dataclass(frozen=True)
class At:
    """A pointer to an element of an array, as ``x + 3`` in C: a kernel may access the whole array through it.

    A slice ``x[3:]`` is a separate array: a kernel may not read before its first element.

    >>> At(np.arange(12).reshape(3, 4), (1, 2)).offset
    48
    """

    array: object
    index: int | tuple[int, ...]

    @property
    def offset(self) -> int:
        """Bytes from the start of the array."""
        array = host_array("at", self.array)
        index = self.index if isinstance(self.index, tuple) else (self.index,)
        if len(index) > array.ndim:
            raise ArgumentError(
                argument="at",
                got=f"the index {index} of an array of {array.ndim} dimensions",
                wanted="at most one number for each dimension",
                fix="Leave the others out.",
            )
        return sum(each * stride for each, stride in zip(index, array.strides, strict=False))


@dataclass(frozen=True)
class Mapped:
    """A tensor map, without an address yet, over an array that is bound with the launch."""

    array: object
    map: TensorMap


def array_key(array: NDArray[Any]) -> tuple[Any, ...]:
    """Return a key that arrays with the same memory, shape and type share."""
    return (array.ctypes.data, array.shape, array.strides, array.dtype)


def unwritten_outputs(memory: Memory, kernel: str) -> Iterator[Hazard]:
    """Yield a note for each array that a launch does not read, and of which it has left a part, or all, unwritten."""
    for output in memory.allocations:
        if not output.output or output.stored is None or output.first_read is not None:
            continue
        missing = np.flatnonzero(output.stored[1] == 0)
        if len(missing):
            share = 1 - len(missing) / output.size
            what = f"only {share:.1%} of {output.name}" if share else f"nothing of {output.name}"
            first = f"the first element without a value is {output.describe(output.start + int(missing[0]))}"
            message = f"{kernel}: wrote {what}{'; ' + first if share else ''}: look at the grid, and at the guards"
            yield Hazard("unwritten-output", message, kernel, "")


class Binder:
    """Binds the arrays of one launch. An array that is passed twice has one address, as have textures and surfaces."""

    def __init__(self, memory: Memory, *, initcheck: bool = False) -> None:
        self.memory = memory
        self.initcheck = initcheck
        self.bound: dict[tuple[Any, ...], Pointer] = {}
        self.arrays: list[tuple[str, NDArray[Any]]] = []
        self.images: dict[Texture | Surface, Pointer] = {}

    def pointer(self, name: str, array: NDArray[Any], *, stored: bool = True) -> Pointer:
        """Return the address of an array. If ``stored``, kernels may store to it, unless it is read-only."""
        if array.dtype.hasobject:
            array, stored = with_handles(name, array, self.handle), False
        key = array_key(array)
        stored = stored and array.flags.writeable
        if key not in self.bound:
            self.arrays.append((name, array))
            empty = array.flags.writeable and _unwritten(array)
            self.bound[key] = self.memory.bind(
                name,
                array,
                access="rw" if stored else "r",
                initialised=not (self.initcheck and empty),
                by_element=True,
                output=bool(stored and empty and array.flags.c_contiguous and array.size),
            )
        elif stored:
            self.memory.holding(self.bound[key]).writable = True
        return self.bound[key]

    def handle(self, name: str, image: object) -> Pointer:
        """Return the handle of a texture or surface, or the address of an array."""
        if not isinstance(image, Texture | Surface):
            return self.pointer(name, host_array(name, image))
        if image not in self.images:
            pointer = self.pointer(name, image.array, stored=isinstance(image, Surface))
            self.images[image] = self.memory.attach(name, image, pointer)
        return self.images[image]

    def argument(self, index: int, value: object, variable: Variable, parameter: Parameter | None) -> Argument:
        """Return one value as an argument of the launch."""
        name = parameter.name if parameter is not None and parameter.name else f"argument {index}"
        if isinstance(value, Mapped):
            value = replace(value.map, pointer=self.pointer(name, host_array(name, value.array)))
        if isinstance(value, Struct | TensorMap):
            return value
        if isinstance(value, Texture | Surface):
            _check_image(name, value, variable, parameter)
        address = self._address(name, value)
        if address is not None:
            return address
        struct = self._struct(name, value)
        if struct is not None:
            return _fitted(name, struct, variable, parameter)
        if isinstance(value, np.generic):
            return _checked(name, value, variable, parameter)
        if isinstance(value, bool | int | float):
            return _number(name, value, variable, parameter)
        array = host_array(name, value.array if isinstance(value, At) else value)
        _check_pointer(name, array, variable, parameter)
        return self._pointer(name, array, value)

    def _pointer(self, name: str, array: NDArray[Any], value: object) -> Pointer:
        """Return the address of an array, or of the element of it that ``value`` points to."""
        pointer = self.pointer(name, array)
        return replace(pointer, address=pointer.address + value.offset) if isinstance(value, At) else pointer

    def _address(self, name: str, value: object) -> Pointer | None:
        """Return the pointer of a value without an array (a pointer, null, or a handle), or None."""
        if isinstance(value, Texture | Surface):
            return self.handle(name, value)
        if value is None:
            return Pointer(name, 0)
        return value if isinstance(value, Pointer) else None

    def _struct(self, name: str, value: object) -> Struct | None:
        """Return a struct passed by value, or None if the value is not a struct."""
        if isinstance(value, tuple | list):
            return Struct.of(*(self._member(f"{name}.{n}", each) for n, each in enumerate(value)))
        if isinstance(value, ctypes.Structure | ctypes.Array):
            return Struct(bytes(value), ctypes.alignment(value))
        if isinstance(value, np.void) or (isinstance(value, np.ndarray) and not value.ndim and value.dtype.fields):
            alignment = max(value.dtype.alignment, 1)
            held = with_handles(name, np.asarray(value), self.handle) if value.dtype.hasobject else value
            return Struct(held.tobytes(), alignment)
        return None

    def _member(self, name: str, value: object) -> Pointer | np.generic:
        if isinstance(value, np.generic):
            return value
        address = self._address(name, value)
        if address is not None:
            return address
        if isinstance(value, bool | int | float):
            raise ArgumentError(
                argument=name,
                got=f"{value!r}",
                wanted="a NumPy scalar, since the PTX does not say a member's type",
                fix=f"Write np.int32({value!r}) or np.float32({value!r}).",
            )
        return self._pointer(name, host_array(name, value.array if isinstance(value, At) else value), value)


def _check_image(name: str, image: Texture | Surface, variable: Variable, parameter: Parameter | None) -> None:
    """Check that a texture or surface matches the kind of handle in the parameter's type, if it has one."""
    kind = HANDLES.get(parameter.type) if parameter is not None else None
    if variable.size != 8 or variable.element[:1] == "f" or (kind is not None and not isinstance(image, kind)):
        raise ArgumentError(
            argument=name,
            got=f"a {type(image).__name__}",
            wanted=f"a value for {_described(variable, parameter)}",
            fix=f"Pass a {kind.__name__}." if kind is not None else "Check the order of the arguments.",
        )


def _fitted(name: str, struct: Struct, variable: Variable, parameter: Parameter | None) -> Struct:
    """Return a struct with the parameter's size and alignment.

    Members such as ``int2`` and ``float4`` have a larger alignment.
    """
    if len(struct.data) != variable.size:
        raise ArgumentError(
            argument=name,
            got=f"a struct of {len(struct.data)} bytes, aligned to {struct.align}",
            wanted=f"{variable.size} bytes, aligned to {variable.align}, for {_described(variable, parameter)}",
            fix="Lay it out as the kernel's source does, with the padding between its members and at its end.",
        )
    return Struct(struct.data, max(struct.align, variable.align))


def _unwritten(array: NDArray[Any]) -> bool:
    """Tell whether an array stands for unwritten memory: all NaN, or all bits set."""
    if array.dtype.kind == "f":
        return bool(np.isnan(array).all())
    return bool((np.ascontiguousarray(array).view(np.uint8) == 0xFF).all())


def _number(name: str, value: float, variable: Variable, parameter: Parameter | None) -> np.generic:
    """Return a Python number as a scalar of the parameter's type."""
    dtype = _NUMBERS.get(variable.element)
    if variable.element == "b8" and variable.size in {2, 4, 8} and parameter is not None:
        dtype = {"half": np.dtype(np.float16), "__half": np.dtype(np.float16)}.get(parameter.type)
        dtype = np.dtype(ml_dtypes.bfloat16) if "bfloat16" in parameter.type else dtype
    if dtype is None or (dtype.itemsize != variable.size):
        raise ArgumentError(
            argument=name,
            got=repr(value),
            wanted=f"a value of {variable.size} bytes for {_described(variable, parameter)}",
            fix="Give a tuple of the struct's members, a NumPy record of an aligned dtype, or a NumPy scalar.",
        )
    if parameter is not None and parameter.pointee and value != 0:
        raise _no_array(name, repr(value), variable, parameter)
    if dtype.kind in "iu":
        whole = int(value)
        bits = 8 * dtype.itemsize
        if whole != value or not -(1 << bits - 1) <= whole < 1 << bits:
            raise ArgumentError(
                argument=name,
                got=repr(value),
                wanted=f"a whole number of {bits} bits for {_described(variable, parameter)}",
                fix="Convert it, or change the parameter's type.",
            )
        scalar: np.generic = np.uint64(whole & (1 << bits) - 1).astype(f"u{dtype.itemsize}").view(dtype)
        return scalar
    return np.asarray([value]).astype(dtype)[0]  # type: ignore[no-any-return]


def _checked(name: str, value: np.generic, variable: Variable, parameter: Parameter | None) -> np.generic:
    """Return a NumPy scalar, which must have the parameter's size, and must not be an integer for a real parameter."""
    real = variable.element in {"f32", "f64"}
    if value.nbytes != variable.size or (real and value.dtype.kind in "iub") or (not real and _mixed(value, variable)):
        raise ArgumentError(
            argument=name,
            got=f"{value.dtype} {value}",
            wanted=f"{variable.size} bytes for {_described(variable, parameter)}",
            fix="Give a Python number, which becomes the parameter's type, or a NumPy scalar of that type.",
        )
    return value


def _mixed(value: np.generic, variable: Variable) -> bool:
    return variable.element[:1] in {"u", "s"} and value.dtype.kind == "f"


def _check_pointer(name: str, array: NDArray[Any], variable: Variable, parameter: Parameter | None) -> None:
    image = HANDLES.get(parameter.type) if parameter is not None else None
    if image is not None:
        raise ArgumentError(
            argument=name,
            got=f"an array of {array.dtype}",
            wanted=f"a {image.__name__} for {_described(variable, parameter)}",
            fix=f"Pass matmill.{image.__name__}({name}), which says how kernels see the array.",
        )
    if variable.size != 8 or variable.element in {"f64", "b8"}:
        raise ArgumentError(
            argument=name,
            got=f"an array of {array.dtype}",
            wanted=f"a value for {_described(variable, parameter)}",
            fix="Pass a number, or check the order of the arguments.",
        )
    wanted = _ELEMENTS.get(parameter.pointee) if parameter is not None else None
    kinds = {np.dtype(each) for each in wanted or ()}
    if wanted is not None and array.dtype not in kinds and not array.dtype.hasobject:
        shown = str(np.dtype(wanted[0]))
        spelled = f"ml_dtypes.{shown}" if shown == "bfloat16" else f"np.{shown}"
        raise ArgumentError(
            argument=name,
            got=f"an array of {array.dtype}",
            wanted=f"{shown}, for {_described(variable, parameter)}",
            fix=f"Make it with dtype={spelled}, or pass {name}.view({spelled}) if its bytes are meant.",
        )


def _no_array(name: str, got: str, variable: Variable, parameter: Parameter | None) -> ArgumentError:
    return ArgumentError(
        argument=name,
        got=got,
        wanted=f"an array for {_described(variable, parameter)}",
        fix="Pass a NumPy array, on which the kernel works in place, or None for a null pointer.",
    )


def _described(variable: Variable, parameter: Parameter | None) -> str:
    return f"parameter {variable.name}" if parameter is None else str(parameter)


def bound_arguments(
    binder: Binder, values: Sequence[object], entry: str, variables: Sequence[Variable], parameters: Sequence[Parameter]
) -> tuple[Argument, ...]:
    """Return all arguments of a launch.

    Raises :class:`~matmill.errors.ArgumentError` for a wrong number of values, or for one that its parameter does not
    take.
    """
    known: Sequence[Parameter | None] = parameters if len(parameters) == len(variables) else [None] * len(variables)
    if len(values) != len(variables):
        named = ", ".join(_described(v, p) for v, p in zip(variables, known, strict=True))
        raise ArgumentError(
            argument="arguments",
            got=f"{len(values)} values",
            wanted=f"{len(variables)}: {named}" if variables else "none",
            fix=f"Give one value for each parameter of {entry}, in its order.",
        )
    rows = enumerate(zip(values, variables, known, strict=True))
    return tuple(binder.argument(index, *row) for index, row in rows)


def bound_symbols(values: Mapping[str, object]) -> dict[str, NDArray[Any]]:
    """Return the arrays, or NumPy scalars, for variables of a module by their names.

    Raises :class:`~matmill.errors.ArgumentError` for a Python number, because the PTX lacks the variable's type.
    """
    arrays: dict[str, NDArray[Any]] = {}
    for name, value in values.items():
        if isinstance(value, bool | int | float):
            raise ArgumentError(
                argument=f"symbols[{name!r}]",
                got=repr(value),
                wanted="an array or a NumPy scalar of the variable's type",
                fix=f"Write np.int32({value!r}) or np.float32({value!r}).",
            )
        if isinstance(value, np.generic):
            arrays[name] = np.asarray(value)
            arrays[name].flags.writeable = False
        else:
            arrays[name] = host_array(name, value)
    return arrays
