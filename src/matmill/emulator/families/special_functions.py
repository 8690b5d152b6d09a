"""Reciprocals, roots and transcendental functions: rcp, sqrt, rsqrt, ex2, lg2, sin, cos, tanh, testp.

PTX ISA, "Floating-Point Instructions". Exact forms (.rn, .rz, …) are rounded correctly. Approximate forms are computed
in float64 and rounded, so they are at least as accurate as hardware, whose last bits differ.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from matmill.emulator.arith import directed, exact
from matmill.emulator.arith.bfloat16 import is_bf16, through_f32
from matmill.emulator.arith.row import Row
from matmill.emulator.families.floats import ROUNDINGS
from matmill.emulator.frontend.syntax import Instruction
from matmill.emulator.program.table import KIND_OF_TYPE, Action, Modifiers, computed, instructions


def _reciprocal(x: Row) -> Row:
    return np.reciprocal(x)


def _reciprocal_root(x: Row) -> Row:
    return np.reciprocal(np.sqrt(x))


_FUNCTIONS: dict[str, Callable[[Row], Row]] = {
    "rcp": _reciprocal,
    "sqrt": np.sqrt,
    "rsqrt": _reciprocal_root,
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
}


_DIRECTED = {"sqrt": directed.root, "rcp": directed.reciprocal}


def _rounded(name: str, mode: str) -> Callable[..., object]:
    """Return ``sqrt`` or rcp with a directed rounding."""

    def call(a: Row, out: Row) -> None:
        if out.dtype == np.float64:
            out[...] = _DIRECTED[name](a, mode)
        else:
            out[...] = exact.narrow(_wide(name)(a), out.dtype.type, mode)

    return call


def _of_turns(function: Callable[[Row], Row]) -> Callable[[Row], Row]:
    """Return ``sin`` or cos of an angle in units of 2 pi: ``.2pi``."""
    return lambda a: function((a - np.rint(a)) * (2 * np.pi))


def _wide(name: str) -> Callable[..., exact.F8]:
    """Return ``sqrt`` or rcp in float64.

    For a float32 argument the result is a float32 only if it is exact.
    """
    return lambda a: np.asarray(_FUNCTIONS[name](np.asarray(a, np.float64)))


@instructions(*_FUNCTIONS)
def special_function(i: Instruction) -> Action:
    """Bind a function of one argument."""
    m = Modifiers(i, "approx")
    rounding = m.pick(ROUNDINGS, "rn")
    ftz, turns = m.flag("ftz"), i.name in {"sin", "cos"} and m.flag("2pi")
    type_name = m.type("f16", "f16x2", "bf16", "bf16x2", "f32", "f64")
    kind = KIND_OF_TYPE[type_name]
    m.done()
    function = _of_turns(_FUNCTIONS[i.name]) if turns else _FUNCTIONS[i.name]

    def through_f64(a: Row, out: Row) -> None:
        out[...] = function(np.asarray(a, np.float64))

    if is_bf16(type_name):
        call = through_f32((lambda x: exact.flush(function(exact.flush(x)))) if ftz else function)
    elif rounding != "rn" and i.name in _DIRECTED:
        call = _rounded(i.name, rounding)
    else:
        call = through_f64
    d, a = i.operands
    call = exact.flushed(call, _wide(i.name) if i.name in _DIRECTED else None, rounding) if ftz else call
    return computed(i, call, [(a, kind)], [(d, kind)], tally="special", in_place=True)


_TESTS: dict[str, Callable[[Row], Row]] = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda x: ~np.isnan(x),
    "notanumber": np.isnan,
    # PTX ISA, "testp": zero counts as normal.
    "normal": lambda x: np.isfinite(x) & ((np.abs(x) >= np.finfo(x.dtype).tiny) | (x == 0)),
    "subnormal": lambda x: (np.abs(x) < np.finfo(x.dtype).tiny) & (x != 0),
}


@instructions("testp")
def test_property(i: Instruction) -> Action:
    """Bind ``testp``."""
    m = Modifiers(i)
    test = _TESTS[m.pick(_TESTS)]
    kind = KIND_OF_TYPE[m.type("f32", "f64")]
    m.done()

    def call(a: Row, out: Row) -> None:
        out[...] = test(a)

    d, a = i.operands
    return computed(i, call, [(a, kind)], [(d, "p")], tally="other")
