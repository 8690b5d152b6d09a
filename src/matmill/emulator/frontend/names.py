"""Names as C++ writes them: mangled names are demangled, and bytes of an array become elements."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from functools import cache, lru_cache

_LIBRARY = "libstdc++.so.6"
# NVRTC's namespace for the static names of a file.
# An element of an array that the compiler has taken out of it.
_ELEMENT = re.compile(r"(?:_\$_\d+)+$")
_INTERNAL = re.compile(r"\b_INTERNAL_\w+::")


@lru_cache(maxsize=4096)
def readable(name: str) -> str:
    """Return a mangled name as C++ writes it, by the C++ runtime's demangler; any other name unchanged.

    The parameters of a function around a variable are omitted.

    >>> readable("_ZZ5scalePfiE4tile"), readable("_Z5scalePfi"), readable("partial")
    ('scale::tile', 'scale(float*, int)', 'partial')
    """
    element = _ELEMENT.search(name)
    if element is not None:
        return readable(name[: element.start()]) + "".join(f"[{n}]" for n in re.findall(r"\d+", element[0]))
    demangle = _demangler()
    if not name.startswith("_Z") or demangle is None:
        return name
    status = ctypes.c_int()
    demangled = demangle(name.encode(), None, None, ctypes.byref(status))
    if not demangled:
        return name
    text = ctypes.cast(demangled, ctypes.c_char_p).value or b""
    ctypes.CDLL(None).free(ctypes.c_void_p(demangled))
    return _without_parameters(_INTERNAL.sub("", text.decode()))


def _without_parameters(name: str) -> str:
    """Return a name without the parameters of the functions around it; "(anonymous namespace)" remains."""
    end = name.rfind(")::")
    while end >= 0:
        depth, start = 0, end
        while start >= 0:
            depth += (name[start] == ")") - (name[start] == "(")
            if not depth:
                break
            start -= 1
        if name[start : end + 1] != "(anonymous namespace)":
            name = name[:start] + name[end + 1 :]
        end = name.rfind(")::", 0, start)
    return name


@cache
def _demangler() -> Callable[..., int | None] | None:
    """Return ``__cxa_demangle`` of the C++ runtime, which the compiler's bindings load, too, or None."""
    try:
        demangle = ctypes.CDLL(_LIBRARY)["__cxa_demangle"]
    except (OSError, AttributeError):
        return None
    demangle.restype = ctypes.c_void_p
    demangle.argtypes = (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))
    return demangle


def byte_count(count: int) -> str:
    """Return "1 byte" or "4 bytes"."""
    return f"{count} byte{'s' if count != 1 else ''}"


def element_at(name: str, offset: int, itemsize: int, shape: Sequence[int]) -> str:
    """Return the element at a byte offset of an array, stored by rows; a byte inside an element is named too.

    >>> element_at("tile", 132, 4, (32, 33)), element_at("x", 6, 4, (8,))
    ('tile[1][0]', 'byte 2 of x[1]')
    """
    index, inside = divmod(offset, itemsize)
    indices = []
    for extent in reversed(shape):
        index, at = divmod(index, extent)
        indices.append(at)
    element = name + "".join(f"[{at}]" for at in reversed(indices))
    return f"byte {inside} of {element}" if inside else element
