"""The kernel arguments of ``matmill emulate``: numbers, ``.npy`` files, and generated arrays."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from matmill.cli.files import ANY, load
from matmill.cli.options import writable
from matmill.errors import ArgumentError

if TYPE_CHECKING:
    from matmill.emulator.frontend.syntax import Variable
    from matmill.testing.arguments import At
    from matmill.testing.kernel import PtxKernel

Array = NDArray[Any]

#: Element types by their names in arguments, short ones and NumPy's.
TYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    **{f"{kind}{8 * size}": np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)},
}
_SHORT_NAMES = ", ".join(TYPES)
TYPES |= {dtype.name: dtype for dtype in TYPES.values()}
#: Every form, for ``--help`` and error messages.
FORMS = (
    "a number (5, 1.5), a typed one (i64:5, f32:1.5), in:FILE.npy, out:FILE.npy[:TYPE:SHAPE], zeros:TYPE:SHAPE, "
    "random:TYPE:SHAPE[:LOW..HIGH][:SEED] or struct:FORM,FORM,... with typed numbers; ARRAY@N points to its element N"
)
# Element types for PTX's parameter types; .b32 may be integer or real, so the number decides.
_PARAMETERS = {
    **{f"s{bits}": f"i{bits}" for bits in (8, 16, 32, 64)},
    **{f"{kind}{bits}": f"u{bits}" for kind in "ub" for bits in (8, 16, 32, 64)},
    "f32": "f32",
    "f64": "f64",
}


#: A value of ``matmill.testing``, except for structs, which are tuples of these.
Value = np.generic | Array
#: The files to which arrays are written after the run, with the arguments' names.
Files = dict[Path, str]


@dataclass(frozen=True)
class _Position:
    """The position of an argument, and of a member in a struct, both counted from 0; or the name of a variable."""

    argument: int | str
    member: int | None = None

    @property
    def name(self) -> str:
        """The argument's number, with a struct's member as in 2.1, or the variable's name."""
        return str(self.argument) if self.member is None else f"{self.argument}.{self.member}"

    def __str__(self) -> str:
        if isinstance(self.argument, str):
            return f"--symbol {self.argument}"
        return f"--arg number {self.argument}" + ("" if self.member is None else f", member {self.member}")

    @property
    def seed(self) -> int:
        """The default seed of random numbers, different for each argument and member."""
        return (self.argument if isinstance(self.argument, int) else 0) + (self.member or 0)


def parse_symbol(text: str, files: Files) -> tuple[str, Value]:
    """Parse the name and the value of one ``--symbol NAME=VALUE``; an output file is added to ``files``.

    Raises :class:`~matmill.errors.ArgumentError` as :func:`parse_argument` does.
    """
    name, separator, value = text.partition("=")
    if not separator:
        raise ArgumentError(
            argument="--symbol", got=repr(text), wanted="NAME=VALUE", fix="For instance filter=in:filter.npy."
        )
    return name, _parse(value, _Position(name), None, files)


def parse_argument(text: str, index: int, parameter: Variable, files: Files) -> Value | At | tuple[Value, ...]:
    """Parse one ``--arg`` for the kernel's parameter ``index``; an output file is added to ``files``.

    Raises :class:`~matmill.errors.ArgumentError` for anything but ``FORMS``, and for values outside their type's range.
    """
    kind, _, rest = text.partition(":")
    base, _, element = text.rpartition("@")
    if element.isdigit() and kind in {"in", "out", "zeros", "random"}:
        from matmill.testing.arguments import At  # noqa: PLC0415 — other commands should not pay for it

        array = np.asarray(_parse(base, _Position(index), parameter, files))
        return At(array, tuple(int(n) for n in np.unravel_index(int(element), array.shape)))
    if kind == "struct":
        members = rest.split(",")
        return tuple(_parse(member, _Position(index, n), None, files) for n, member in enumerate(members))
    return _parse(text, _Position(index), parameter, files)


def _parse(text: str, position: _Position, parameter: Variable | None, files: Files) -> Value:
    """Parse an argument that is not a struct, or one member of a struct, whose type the PTX lacks."""
    kind, _, rest = text.partition(":")
    if kind == "in":
        array = np.array(load(Path(rest), str(position), wanted=ANY))
        array.flags.writeable = False
        return array
    if kind == "out":
        return _output(rest, position, files)
    if kind == "zeros":
        return np.zeros(*_shape_and_type(text, rest, position))
    if kind == "random":
        return _random(text, rest, position)
    if kind in TYPES and rest:
        return _scalar(kind, rest, text, position)
    if rest:
        raise _wrong(text, position)
    known = _PARAMETERS.get(parameter.element, "") if parameter is not None else ""
    if parameter is None or not known or parameter.size != TYPES[known].itemsize:
        wanted = (
            "a number of a known type"
            if parameter is None
            else f"a value of {parameter.size} bytes for parameter {parameter.name}"
        )
        raise ArgumentError(
            argument=str(position),
            got=repr(text),
            wanted=wanted,
            fix="The PTX does not say its type: write it in front, as in f16:1.5, or struct: and each member.",
        )
    return _scalar(known, text, text, position, real_too=parameter.element == "b32")


def _wrong(text: str, position: _Position) -> ArgumentError:
    fix = f"Types are {_SHORT_NAMES}, or in full, as float32; a shape is 64x32."
    return ArgumentError(argument=str(position), got=repr(text), wanted=FORMS, fix=fix)


def _scalar(kind: str, text: str, whole: str, position: _Position, *, real_too: bool = False) -> np.generic:
    """Return ``text`` as a value of type ``kind``.

    Integers may be unsigned, signed or hexadecimal.
    """
    dtype = TYPES[kind]
    try:
        if kind[0] in "iu":
            number = int(text, 0)
            bits = 8 * dtype.itemsize
            if not -(1 << bits - 1) <= number < 1 << bits:
                raise _wrong(whole, position)
            scalar: np.generic = np.uint64(number & (1 << bits) - 1).astype(f"u{dtype.itemsize}").view(dtype)
            return scalar
        real: np.generic = np.array([float(text)]).astype(dtype)[0]
    except ValueError as problem:
        if real_too and re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?|[-+]?(inf|nan)", text, re.IGNORECASE):
            return np.float32(text)
        if isinstance(problem, ArgumentError):
            raise
        raise _wrong(whole, position) from problem
    return real


def _shape(text: str) -> tuple[int, ...] | None:
    if not re.fullmatch(r"\d+(x\d+)*", text):
        return None
    shape = tuple(int(n) for n in text.split("x"))
    return shape if math.prod(shape) < 1 << 34 else None


def _shape_and_type(text: str, rest: str, position: _Position) -> tuple[tuple[int, ...], np.dtype[Any]]:
    kind, _, sizes = rest.partition(":")
    shape = _shape(sizes)
    if kind not in TYPES or shape is None:
        raise _wrong(text, position)
    return shape, TYPES[kind]


def _random(text: str, rest: str, position: _Position) -> Array:
    """Return random floats uniform in [-1, 1), or integers of their whole range, or of the range that is given.

    The default seed is the position's.
    """
    parts = rest.split(":")
    seed = int(parts.pop()) if len(parts) > 2 and parts[-1].isdigit() else position.seed
    given = re.fullmatch(r"(-?[\d.]+?)\.\.(-?[\d.]+)", parts[-1]) if len(parts) == 3 else None
    shape, dtype = _shape_and_type(text, ":".join(parts[:2] if given else parts), position)
    rng = np.random.default_rng(seed)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        low, high = (int(given[1]), int(given[2])) if given else (limits.min, limits.max)
        if not limits.min <= low <= high <= limits.max:
            raise _wrong(text, position)
        return rng.integers(low, high, shape, dtype, endpoint=True)
    start, stop = (float(given[1]), float(given[2])) if given else (-1.0, 1.0)
    return rng.uniform(start, stop, shape).astype(dtype)


def _output(rest: str, position: _Position, files: Files) -> Array:
    """Return an array that is written to a file after the run: initially the file's contents, or all bits set."""
    file, *more = rest.rsplit(":", 2)
    if len(more) == 2 and more[0] in TYPES and (shape := _shape(more[1])) is not None:
        dtype = TYPES[more[0]]
        # As floats these are NaN, which shows elements that the kernel does not store.
        array = np.full(math.prod(shape) * dtype.itemsize, 0xFF, np.uint8).view(dtype).reshape(shape)
        path = Path(file)
    else:
        path = Path(rest)
        array = np.array(load(path, str(position), wanted=ANY))
    writable(path, str(position))
    files[path] = position.name
    return array


_SPELLED = {"float": "f32", "double": "f64", "half": "f16", "__half": "f16", "__nv_bfloat16": "bf16", "char": "i8"}
_SPELLED |= {"int": "i32", "unsigned int": "u32", "unsigned": "u32", "unsigned char": "u8", "long long": "i64"}
_SPELLED |= {"short": "i16", "unsigned short": "u16", "unsigned long": "u64", "unsigned long long": "u64", "bool": "u8"}


def example(kernel: PtxKernel, file: Path) -> str:
    """Return a kernel's signature, and a command that runs it: as the host code does, or with arrays of 1024."""
    from matmill.cuda_source.signature import Parameter  # noqa: PLC0415 — other commands should not pay for it

    unit, launch = kernel.unit, kernel.unit.host_launch()
    # PTX has sizes alone: what is as large as a pointer is taken for one.
    sized = (Parameter(each.name, "float*" if each.size == 8 else "int") for each in kernel.function.params)
    parameters = unit.parameters or tuple(sized)
    words = ["matmill emulate", str(file)] + ([f"--entry '{unit.spelled}'"] if "<" in unit.spelled else [])
    count = max((value for text in launch.arguments if (value := unit.constant(text))), default=1024)
    grid = launch.grid if launch.sizes is not None else (-(-count // launch.block[0]),)
    words += [f"--{name} {','.join(map(str, extents))}" for name, extents in (("grid", grid), ("block", launch.block))]
    words += [f"--shared {launch.shared}"] if launch.shared else []
    pointers = [each for each in parameters if each.pointee]
    filled = [each for each in pointers if each.const] or pointers[:-1]
    for number, parameter in enumerate(parameters):
        text = launch.arguments[number] if number < len(launch.arguments) else ""
        if parameter.pointee:
            kind = _SPELLED.get(parameter.pointee, "u8")
            nbytes = (launch.sizes or {}).get(text, 0)
            elements = nbytes // TYPES[kind].itemsize or count
            words.append(f"--arg {'random' if parameter in filled else 'zeros'}:{kind}:{elements}")
        else:
            real = (parameter.compiled or parameter.type) in {"float", "double"}
            value = unit.constant(text)
            words.append(f"--arg {value if value is not None else 1.0 if real else count}")
    signature = f"{unit.spelled}({', '.join(map(str, parameters))})"
    how = "A command that runs it" if launch.sizes is not None else "A command to begin with, whose sizes are guesses"
    return f"The kernel is {signature}. {how}:\n  {' '.join(words)}"
