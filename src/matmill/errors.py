"""The exceptions matmill raises.

Every message answers four questions: which argument, what it got, what was wanted, and what to do about it.
Each class also derives from the built-in exception that a caller would expect (``ValueError``, ``TypeError``, …),
so code that knows nothing of matmill still catches it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any


class MatmillError(Exception):
    """Base of all errors raised by matmill.

    ``argument``, ``got``, ``wanted`` and ``fix`` are kept as attributes so that programs need not parse the message.
    """

    def __init__(self, *, argument: str, got: str, wanted: str, fix: str) -> None:
        self.argument = argument
        self.got = got
        self.wanted = wanted
        self.fix = fix
        super().__init__(f"{argument}: got {got}; wanted {wanted}. {fix}")

    def __reduce__(self) -> tuple[Callable[..., MatmillError], tuple[Any, ...], dict[str, Any]]:
        # Without this, pickle would call the class with the message alone, and a pool of processes would break.
        return _unpickle, (type(self), self.args), vars(self)


class ShapeError(MatmillError, ValueError):
    """Shapes that do not fit together, or a shape that the operation does not take."""


class DTypeError(MatmillError, TypeError):
    """An element type, byte order or mixture of types that is not supported."""


class DeviceError(MatmillError, ValueError):
    """Operands that live on different devices, or on one that matmill cannot reach."""


class AliasError(MatmillError, ValueError):
    """An output that shares memory with an input or with itself."""


class ReadOnlyError(MatmillError, ValueError):
    """An output that may not be written."""


class ArgumentError(MatmillError, ValueError):
    """An option outside its range, or options that contradict each other."""


class UnknownNameError(MatmillError, LookupError):
    """A name that is not in its table; the message suggests the nearest one that is."""


class NoGPUError(MatmillError, RuntimeError):
    """A GPU is required, and none can be used."""


class CompileError(MatmillError, RuntimeError):
    """A kernel that did not compile; ``log`` is the compiler's output."""

    def __init__(self, *, argument: str, got: str, wanted: str, fix: str, log: str = "") -> None:
        self.log = log
        super().__init__(argument=argument, got=got, wanted=wanted, fix=fix)


class LaunchError(MatmillError, RuntimeError):
    """A kernel that could not be launched, or that failed while running."""


class ContextLostError(LaunchError):
    """A kernel failed, and since then the driver refuses every call of this process that uses the GPU."""


class CollectiveError(MatmillError, RuntimeError):
    """A sum over the ranks of a process group failed: a rank ended, or did not take part before the timeout."""


class TruncatedFileError(MatmillError, OSError):
    """The file of a memory-mapped array is now shorter than the array."""


class OutOfMemoryError(MatmillError, MemoryError):
    """A result, or the memory for computing it, that is larger than the memory there is."""


class IllegalConfigError(MatmillError, ValueError):
    """A kernel configuration that the problem or the architecture rules out."""


class MissingPackageError(MatmillError, ModuleNotFoundError):
    """A module of matmill that needs a package that is not installed; ``name`` is the package's."""

    def __init__(self, *, argument: str, got: str, wanted: str, fix: str, name: str = "") -> None:
        super().__init__(argument=argument, got=got, wanted=wanted, fix=fix)
        self.name = name


class EmulationError(MatmillError, RuntimeError):
    """PTX that the emulator cannot read or does not implement. Nothing after it was executed."""


def _unpickle(kind: type[MatmillError], args: tuple[Any, ...]) -> MatmillError:
    return kind.__new__(kind, *args)


def missing_package(error: ModuleNotFoundError, module: str, requirement: str) -> ModuleNotFoundError:
    """Return the error for a ``module`` of matmill without the package of a ``requirement``, or ``error`` itself.

    >>> print(missing_package(ModuleNotFoundError(name="torch"), "matmill.torch", "torch>=2.11"))
    matmill.torch: got no package torch in this environment; wanted torch>=2.11. Install it: pip install 'torch>=2.11'
    """
    package = (error.name or "").partition(".")[0]
    if not package or not requirement.startswith(package):
        return error
    got, fix = f"no package {package} in this environment", f"Install it: pip install '{requirement}'"
    return MissingPackageError(argument=module, got=got, wanted=requirement, fix=fix, name=package)


def by_copy(argument: str, fix: str) -> str:
    """Return the advice to use a copy of an argument. For ``out``, whose copy would be lost, it is to omit ``out``.

    >>> by_copy("a", "Pass a.copy()."), by_copy("out", "Pass out.copy().")
    ('Pass a.copy().', 'Omit out= and use the array that is returned.')
    """
    return fix if argument != "out" else OMIT_OUT


OMIT_OUT = "Omit out= and use the array that is returned."


def size(nbytes: int) -> str:
    """Format a number of bytes for messages.

    >>> size(1000), size(3 << 29), size(2**81), size(2**100)
    ('1000 bytes', '1.50 GiB', '2.00 YiB', '1,048,576.00 YiB')
    """
    power = min(max(0, nbytes.bit_length() - 1) // 10, len(_UNITS))
    return f"{nbytes / 1024**power:,.2f} {_UNITS[power - 1]}" if power else f"{nbytes} bytes"


_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB")


#: In a name of so few letters, a single one makes much of a difference.
_FEW_LETTERS = 3


def unknown_name(argument: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """Return the error for a ``name`` that is not in ``known``, with the nearest known name, if one is near.

    >>> str(unknown_name("arch", "h20", ["t4", "h200"]))
    "arch: got 'h20'; wanted one of t4, h200. Did you mean 'h200'?"
    >>> str(unknown_name("command", "nope", ["inner", "why"]))
    "command: got 'nope'; wanted one of inner, why. Pick one of these names."
    """
    names = list(known)
    cutoff = 0.6 if len(name) > _FEW_LETTERS else 0.5
    close = difflib.get_close_matches(name.lower(), names, n=1, cutoff=cutoff)
    fix = f"Did you mean {close[0]!r}?" if close else "Pick one of these names."
    return UnknownNameError(argument=argument, got=repr(name), wanted=f"one of {', '.join(names)}", fix=fix)
