"""Matrices in the registers of a warp, as PTX ISA lays them out for mma.sync, and their products by definition."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from agreement import exact
from agreement.matrix import TYPES, Mma, bits_of
from matmill.emulator.arith.tensor_core import rule_of
from support.tensor_core_rule import sum_of_products

Array = NDArray[Any]
_LANE = np.arange(32)
_G, _T = _LANE // 4, _LANE % 4


def _numbers(words: Array, kind: str) -> Array:
    """Return the elements of registers [..., registers] as [..., registers, elements], in float64 or int64."""
    bits = bits_of(kind)
    if bits < 8:
        elements = words[..., None] >> (np.arange(32 // bits, dtype=np.uint32) * np.uint32(bits)) & ((1 << bits) - 1)
        unsigned: Array = elements.astype(np.int64)
        return np.where(unsigned > 7, unsigned - 16, unsigned) if kind == "s4" else unsigned
    if kind == "tf32":
        words = words & np.uint32(0xFFFFE000)
    elements = words[..., None].view(TYPES[kind])
    return elements.astype(np.int64 if TYPES[kind].kind in "iu" else np.float64)


def _factor(words: Array, kind: str, rows: int) -> Array:
    """Return A, or B transposed, of registers [warps, 32, registers]: [warps, rows, k]."""
    elements = _numbers(words, kind)
    warps, _, registers, each = elements.shape
    tall = rows // 8
    out = np.empty((warps, rows, registers // tall * 4 * each), elements.dtype)
    for r in range(registers):
        for e in range(each):
            out[:, 8 * (r % tall) + _G, 4 * each * (r // tall) + each * _T + e] = elements[:, :, r, e]
    return out


def _sums(words: Array, kind: str, m: int) -> Array:
    """Return C or D of registers: [warps, m, 8], in their own type."""
    elements = np.ascontiguousarray(words).view(TYPES[kind]).reshape(len(words), 32, -1)
    out = np.empty((len(words), m, 8), elements.dtype)
    for n in range(elements.shape[2]):
        out[:, _G + 8 * (n // 2), 2 * _T + n % 2] = elements[:, :, n]
    return out


def matrices(form: Mma, arrays: dict[str, Array], warps: Any = slice(None)) -> tuple[Array, Array, Array, Array]:
    """Return A, B transposed, C and D of a case's arrays."""
    m = form.shape[0]
    a, b, c, d = (arrays[name].reshape(-1, 32, n)[warps] for name, n in zip("abco", form.registers, strict=True))
    return _factor(a, form.a, m), _factor(b, form.b, 8), _sums(c, form.d, m), _sums(d, form.d, m)


def product(form: Mma, target: str, a: Array, b: Array, c: Array) -> Array:
    """Return what the instruction leaves on a target."""
    out = np.empty(c.shape, c.dtype)
    if form.d == "s32":
        differing = "xor" in form.extra
        whole: Array = (a[:, :, None] != b[:, None]).sum(axis=-1) if differing else a @ b.transpose(0, 2, 1)
        whole += c
        return (np.clip(whole, -(2**31), 2**31 - 1) if form.extra == ".satfinite" else whole).astype(np.int32)
    for element in np.ndindex(*c.shape):
        w, i, j = element
        out[element] = _dot(form, target, a[w, i].tolist(), b[w, j].tolist(), float(c[element]))
    return out


def _dot(form: Mma, target: str, x: list[float], y: list[float], c: float) -> float:
    """Return one element: a sum of products and C, rounded as the tensor core does."""
    if form.d == "f64":
        number = exact.of_float(c)
        for p, q in zip(x, y, strict=True):
            term = exact.multiply(exact.of_float(p), exact.of_float(q))
            number = exact.F64.decode(exact.F64.encode(exact.add(term, number)))
        return exact.to_float(number)
    if form.a not in {"e4m3", "e5m2"}:
        return sum_of_products(x, y, c, rule_of(target, form.a, form.d))
    # Factors become f16. Of every four k the first two come first and the last two onto that; then C is added.
    rule, pairs = rule_of(target, "f16", form.d), np.arange(len(x)) % 4 < 2
    total = 0.0
    for group in [pairs | True] if len(x) == 16 else [pairs, ~pairs]:
        total = sum_of_products(np.array(x)[group].tolist(), np.array(y)[group].tolist(), total, rule)
    dtype = TYPES[form.d].type
    with np.errstate(all="ignore"):
        return float(dtype(total) + dtype(c))


def equal(x: Array, y: Array) -> bool:
    """Tell whether the bits of two arrays are equal, or both are NaN."""
    if x.dtype.kind == "i":
        return bool((x == y).all())
    word = f"u{x.dtype.itemsize}"
    return bool(((x.view(word) == y.view(word)) | (np.isnan(x) & np.isnan(y))).all())
