"""The element types that matmill computes with: one table for arrays, sources and error bounds.

``TRANSPOSES`` has the types of transposes, ``ELEMENTWISE`` the real ones of them. ``ALL`` has the real types of
products, ``REAL_AND_COMPLEX`` complex ones too, and ``PRODUCTS`` integers besides. ``DTYPES`` are summed in their own
type; the other, 16-bit types of ``ALL`` are summed in float32.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import ml_dtypes
import numpy as np

from matmill.errors import DTypeError, by_copy, unknown_name


@dataclass(frozen=True, eq=False)  # one object per type: compared by identity, which is quick in keys
class DType:
    """One element type: its name, NumPy type, C++ spelling, size in bytes, unit roundoff, smallest normal number.

    ``wider`` is the type that products are summed in, if it is another one. ``header`` is the file in ``include/`` that
    defines the C++ type, if it is not built in. ``part`` is the type of real and imaginary parts of a complex type.
    """

    name: str
    numpy: np.dtype[np.generic]
    cxx: str
    itemsize: int
    roundoff: float
    tiny: float
    wider: DType | None = None
    header: str = ""
    part: DType | None = None

    @property
    def accumulator(self) -> DType:
        """The type in which products are summed."""
        return self.wider or self

    @cached_property
    def is_integer(self) -> bool:
        """True for integers, whose sums wrap around."""
        return self.numpy.kind in "iu"

    def scalar(self, value: complex) -> np.generic:
        """Return ``value`` as a kernel argument of exactly this type.

        Numbers that are too large become infinite, and integers wrap, as in C.
        """
        if self.is_integer:
            wrapped: np.generic = np.uint64(int(value.real) & (1 << 8 * self.itemsize) - 1).astype(self.numpy)
            return wrapped
        # Silencing NumPy's warning for every value would be slower.
        if (self.itemsize < 8 or self.part is not None) and abs(value) > 1e4:
            with np.errstate(over="ignore"):
                return self.numpy.type(value)
        return self.numpy.type(value)


def _ieee(name: str, cxx: str, kind: type[np.floating]) -> DType:
    dtype: np.dtype[np.generic] = np.dtype(kind)
    facts = np.finfo(kind)
    return DType(name, dtype, cxx, dtype.itemsize, float(facts.eps) / 2, float(facts.tiny))


F32 = _ieee("float32", "float", np.float32)
F64 = _ieee("float64", "double", np.float64)

_HALVES, _INTEGERS = "matmill/dtype/half.cuh", "matmill/dtype/integer.cuh"
# bfloat16 is no IEEE type: NumPy cannot tell its precision.
F16 = DType("float16", np.dtype(np.float16), "matmill::Half", 2, 2.0**-11, 2.0**-14, F32, _HALVES)
BF16 = DType("bfloat16", np.dtype(ml_dtypes.bfloat16), "matmill::BFloat", 2, 2.0**-8, 2.0**-126, F32, _HALVES)

#: float32 elements with products summed in float64, where they are exact: for results with ``out_dtype="float64"``.
F32_IN_F64 = DType(
    "float32 in float64", F32.numpy, "matmill::Single", 4, F32.roundoff, F32.tiny, F64, "matmill/dtype/single.cuh"
)


def _complex(kind: type[np.complexfloating], part: DType) -> DType:
    dtype: np.dtype[np.generic] = np.dtype(kind)
    cxx, header = f"matmill::Complex<{part.cxx}>", "matmill/dtype/complex.cuh"
    return DType(dtype.name, dtype, cxx, dtype.itemsize, part.roundoff, part.tiny, None, header, part)


C64, C128 = _complex(np.complex64, F32), _complex(np.complex128, F64)
# Real products of the parts sum these elements: no source names the type.
_C64_IN_C128 = DType("complex64 in complex128", C64.numpy, "", 8, F32.roundoff, F32.tiny, C128, part=F32)


def _integer(kind: type[np.integer], cxx: str, sums: DType | None = None, header: str = "") -> DType:
    dtype: np.dtype[np.generic] = np.dtype(kind)
    return DType(dtype.name, dtype, cxx, dtype.itemsize, 0.0, 0.0, sums, header)


# Integer sums wrap around. C++ defines that for unsigned numbers only.
U32, U64 = _integer(np.uint32, "unsigned"), _integer(np.uint64, "unsigned long long", None, _INTEGERS)
I8, U8 = _integer(np.int8, "signed char", U32), _integer(np.uint8, "unsigned char", U32, _INTEGERS)
I32, I64 = _integer(np.int32, "int", U32), _integer(np.int64, "long long", U64, _INTEGERS)
#: Types for elements that are only moved, by size in bytes.
BITS: dict[int, DType] = {
    1: I8,
    2: DType("bits16", np.dtype(np.int16), "short", 2, 0.0, 0.0),
    4: I32,
    8: DType("bits64", np.dtype(np.int64), "long long", 8, 0.0, 0.0),
    16: DType("bits128", C128.numpy, "uint4", 16, 0.0, 0.0),
}

DTYPES: dict[str, DType] = {d.name: d for d in (F32, F64)}
ALL: dict[str, DType] = {d.name: d for d in (F32, F64, F16, BF16)}
ELEMENTWISE: dict[str, DType] = {**ALL, **{d.name: d for d in (I8, I32)}}
COMPLEX: dict[str, DType] = {d.name: d for d in (C64, C128)}
TRANSPOSES: dict[str, DType] = {**ELEMENTWISE, **COMPLEX}
REAL_AND_COMPLEX: dict[str, DType] = {**ALL, **COMPLEX}
PRODUCTS: dict[str, DType] = {**REAL_AND_COMPLEX, **{d.name: d for d in (I8, U8, I32, U32, I64, U64)}}
#: Short names, as PTX and the literature write them.
SHORT = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "c64": "complex64", "c128": "complex128",
} | {f"{kind[0]}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 32, 64)}  # fmt: skip


def long_name(text: str, known: Iterable[str] = ELEMENTWISE, argument: str = "--dtype") -> str:
    """Return the name among ``known`` that ``text`` stands for, long or short, in upper or lower case.

    Raises :class:`~matmill.errors.UnknownNameError` with the nearest name.

    >>> long_name("bf16"), long_name("Float32")
    ('bfloat16', 'float32')
    """
    names = list(known)
    full = SHORT.get(text.lower(), text.lower())
    if full not in names:
        raise unknown_name(argument, text, [*names, *(short for short, name in SHORT.items() if name in names)])
    return full


#: Templates for the code that converts an array, from the names of array and type: NumPy's and torch's.
BY_ASTYPE, BY_TO = "{0}.astype('{1}')", "{0}.to(torch.{1})"
#: Types outside the table whose every value float32 represents.
_NARROW = re.compile("bool|u?int(1|2|4|8|16)|float[468]_.*")


def of_numpy(dtype: np.dtype[np.generic], argument: str, table: Mapping[str, DType] = ALL) -> DType:
    """Return the table's row for a NumPy dtype.

    Raises :class:`~matmill.errors.DTypeError` for a type outside the table or one in foreign byte order.

    >>> of_numpy(np.dtype(np.float32), "a").name
    'float32'
    """
    if not dtype.isnative:
        raise DTypeError(
            argument=argument,
            got=f"dtype {dtype.str!r} in non-native byte order",
            wanted="native byte order",
            fix=by_copy(
                argument,
                f"Convert it first: {argument}.astype({argument}.dtype.newbyteorder('=')).",
            ),
        )
    return named(dtype.name, argument, table)


def result_type(out_dtype: object, dtype: DType, argument: str = "out_dtype") -> DType:
    """Return the element type that ``out_dtype`` asks for in a product of elements of ``dtype``.

    ``out_dtype`` is a name, a NumPy dtype or type, or the dtype object of another library; None is ``dtype`` itself,
    and int32 for 8-bit integers, which have no other. It may be float32 for 16-bit elements and float64 for float32
    ones, which are then summed in float64. Raises :class:`~matmill.errors.DTypeError` for any other type.

    >>> result_type("f32", F16).name, result_type(np.float16, F16).name, result_type("float64", F32).name
    ('float32', 'float16', 'float64')
    >>> result_type(None, U8).name
    'int32'
    """
    narrow, wider = None if dtype in (I8, U8) else dtype, widest(dtype)
    if out_dtype is None:
        return narrow or I32
    # torch's dtypes have only this name; np.dtype takes JAX's scalar types as it takes NumPy's own.
    name = str(out_dtype).removeprefix("torch.")
    name = SHORT.get(name, name)
    if name not in PRODUCTS:
        try:
            name = of_numpy(np.dtype(out_dtype), argument, PRODUCTS).name  # type: ignore[call-overload] # any object at all
        except TypeError as error:
            if isinstance(error, DTypeError):
                raise
            name = repr(out_dtype)
    known = [each for each in (narrow, wider) if each is not None]
    for each in known:
        if name == each.name:
            return each
    wanted = " or ".join(each.name for each in known)
    raise DTypeError(
        argument=argument,
        got=f"dtype {name} for a product in {dtype.name}",
        wanted=wanted,
        fix="Omit it, and convert the result.",
    )


def widest(dtype: DType) -> DType | None:
    """Return the other type that products of ``dtype`` may have, or None.

    >>> widest(F16).name, widest(F32).name, widest(F64)
    ('float32', 'float64', None)
    """
    if dtype.is_integer:
        return I32 if dtype.itemsize == 1 else None
    return {F32: F64, C64: C128}.get(dtype, dtype.wider)


def summed(dtype: DType, result: DType) -> DType:
    """Return the table's row that kernels use for elements of ``dtype`` where the product has the type ``result``.

    >>> summed(F32, F64).accumulator.name, summed(F32, F32).accumulator.name, summed(F16, F32).name
    ('float64', 'float32', 'float16')
    """
    return {(F32, F64): F32_IN_F64, (C64, C128): _C64_IN_C128}.get((dtype, result), dtype)


def named(name: str, argument: str, table: Mapping[str, DType] = ALL, *, conversion: str = BY_ASTYPE) -> DType:
    """Return the table's row for the type ``name`` of the array ``argument``.

    Raises :class:`~matmill.errors.DTypeError` for a type outside the table. The message says what to do, with
    ``conversion`` as the template for converting the array.
    """
    dtype = table.get(name)
    if dtype is None:
        *others, last = table
        wanted = f"{', '.join(others)} or {last}"
        raise DTypeError(
            argument=argument,
            got=f"dtype {name}",
            wanted=wanted,
            fix=by_copy(argument, _cure(name, argument, conversion, table)),
        )
    return dtype


def _cure(name: str, argument: str, conversion: str, table: Mapping[str, DType]) -> str:
    """Return the advice for multiplying an array of an unsupported type without losing what it holds."""
    if name.startswith("complex"):
        return f"Pass its parts: {argument}.real and {argument}.imag are real arrays."
    if "int64" in table and ("int" in name or name == "bool"):  # those of more bits are in it
        return f"Convert it first: {conversion.format(argument, 'int32')}."
    if _NARROW.fullmatch(name):
        return f"Convert it first: {conversion.format(argument, 'float32')}."
    exactly = ", which is exact up to 2**53" if "int" in name else ""
    return f"Convert it first: {conversion.format(argument, 'float64')}{exactly}."
