"""Arrays of NumPy, torch, CuPy, JAX and any library with their protocols, converted to :class:`Operand` and back.

Only NumPy is imported. Arrays bring their attributes and protocol methods, and a library whose function is needed is in
``sys.modules`` already.
"""

from __future__ import annotations

from matmill.arrays.host import host_array
from matmill.arrays.operand import Operand, inspect
from matmill.arrays.overlap import mirrors, overlaps, self_overlap
from matmill.arrays.results import ALLOCATE, Result, check_results, from_host, makes_results, will_write
from matmill.arrays.streams import current_stream, resolve_stream

__all__ = [
    "ALLOCATE",
    "Operand",
    "Result",
    "check_results",
    "current_stream",
    "from_host",
    "host_array",
    "inspect",
    "makes_results",
    "mirrors",
    "overlaps",
    "resolve_stream",
    "self_overlap",
    "will_write",
]
