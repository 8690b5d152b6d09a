"""The texels that a fetch reads, and the computation of its result.

CUDA C++ programming guide, "Texture Fetching": nearest-point sampling and linear filtering, whose fractions have 8 bits
behind the point; "Cubemap Textures" for the faces. Coordinates are float64 here, in which a float32 times an extent is
exact. Behaviour that the guide leaves open is described in docs/emulator-textures.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from matmill.emulator.arith.row import Mask, Row
from matmill.textures import Texture

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

_FRACTION = 256
#: The four texels of a gather as (x, y) relative to the first: counter-clockwise from the lower left.
_GATHERED = ((0, 1), (1, 1), (1, 0), (0, 0))


@dataclass(frozen=True)
class Tap:
    """A texel of each lane: bytes from the first texel of the array, its weight, and the lanes that read it.

    ``weight`` is None for a single texel, ``inside`` None if all lanes read a texel; the other lanes have the border's
    value, and an offset that is valid anyway.
    """

    offset: Ints
    weight: Floats | None = None
    inside: Mask | None = None


@dataclass(frozen=True)
class _AxisTexel:
    """A position along one axis: the texel, and whether it exists."""

    index: Floats
    inside: Mask | None


def undefined(texture: Texture, coordinates: Sequence[Floats]) -> Mask:
    """Return which lanes have an undefined coordinate: NaN, or infinite for a texture that repeats."""
    flags = np.zeros(len(coordinates[0]), np.bool_)
    for axis, row in enumerate(coordinates):
        repeats = texture.cubemap or texture.modes[axis] in {"wrap", "mirror"}
        flags |= ~np.isfinite(row) if repeats else np.isnan(row)
    return flags


def taps(texture: Texture, coordinates: Sequence[Floats], layer: Row) -> Iterator[Tap]:
    """Yield the texels that a fetch reads, at defined coordinates along x, y and z: one, or those of the filter."""
    coordinates, layer = _on_face(texture, coordinates, layer)
    if texture.filter == "point":
        yield _tap(texture, [_point(*axis) for axis in _axes(texture, coordinates)], layer)
        return
    axes = [_linear(*axis) for axis in _axes(texture, coordinates)]
    for corner in product((0, 1), repeat=len(axes)):
        weight = np.ones(len(coordinates[0]))
        for side, (_, fraction) in zip(corner, axes, strict=True):
            weight *= fraction if side else 1 - fraction
        steps = [pair[side] for side, (pair, _) in zip(corner, axes, strict=True)]
        yield _tap(texture, steps, layer, weight)


def gathered(texture: Texture, coordinates: Sequence[Floats], layer: Row) -> Iterator[Tap]:
    """Yield the four texels that linear filtering in two dimensions reads, in the order of ``tld4``."""
    (x, _), (y, _) = (_linear(*axis) for axis in _axes(texture, coordinates))
    for right, below in _GATHERED:
        yield _tap(texture, [x[right], y[below]], layer)


def element(texture: Texture, index: Ints) -> Tap:
    """Return the texel of a one-dimensional texture at an integer coordinate.

    Outside the value is zero (``tex1Dfetch``).
    """
    extent = texture.extents[0]
    inside = (index >= 0) & (index < extent)
    return Tap(np.clip(index, 0, extent - 1) * texture.strides[0], inside=None if inside.all() else inside)


def converted(texture: Texture, raw: Row) -> Row:
    """Return channels in the fetch's type: float32, or integers extended to 32 bits."""
    if not texture.floats:
        return raw.astype(np.int32 if raw.dtype.kind == "i" else np.uint32)
    if raw.dtype.kind == "f":
        return raw.astype(np.float32)
    scaled = raw / np.float64(np.iinfo(raw.dtype).max)
    return np.maximum(scaled, -1.0).astype(np.float32)


def _axes(texture: Texture, coordinates: Sequence[Floats]) -> Iterator[tuple[Floats, int, str]]:
    """Yield coordinates in texels, the extent and the address mode, along x, y and z."""
    for row, extent, mode in zip(coordinates, texture.extents, texture.modes, strict=True):
        yield (row * extent if texture.normalized else row), extent, mode


def _tap(texture: Texture, steps: Sequence[_AxisTexel], layer: Row, weight: Floats | None = None) -> Tap:
    offset = np.zeros(len(steps[0].index), np.int64)
    inside: Mask | None = None
    for step, stride in zip(steps, texture.strides, strict=True):
        offset += step.index.astype(np.int64) * stride
        inside = step.inside if inside is None else inside if step.inside is None else inside & step.inside
    layers, stride = texture.layers
    offset += np.minimum(layer, layers - 1).astype(np.int64) * stride
    return Tap(offset, weight, inside)


def _within(position: Floats, extent: int, mode: str) -> Floats:
    """Return coordinates in texels, with those far outside clamped to a distance where all are alike."""
    if mode == "mirror":
        position = np.mod(position, 2 * extent)
        return np.where(position >= extent, 2 * extent - position, position)
    return position if mode == "wrap" else np.clip(position, -1, extent + 1)


def _step(index: Floats, extent: int, mode: str) -> _AxisTexel:
    if mode == "wrap":
        return _AxisTexel(np.mod(index, extent), None)
    inside = (index >= 0) & (index < extent) if mode == "border" else None
    return _AxisTexel(np.clip(index, 0, extent - 1), inside)


def _point(position: Floats, extent: int, mode: str) -> _AxisTexel:
    return _step(np.floor(_within(position, extent, mode)), extent, mode)


def _linear(position: Floats, extent: int, mode: str) -> tuple[tuple[_AxisTexel, _AxisTexel], Floats]:
    """Return the two texels around a position, and the weight of the second."""
    fixed = np.rint((_within(position, extent, mode) - 0.5) * _FRACTION) / _FRACTION
    first = np.floor(fixed)
    return (_step(first, extent, mode), _step(first + 1, extent, mode)), fixed - first


def _on_face(texture: Texture, coordinates: Sequence[Floats], layer: Row) -> tuple[Sequence[Floats], Row]:
    """Return the coordinates of a direction on its cubemap face, and the face as a layer."""
    if not texture.cubemap:
        return coordinates, layer
    x, y, z = coordinates
    sizes = np.abs(coordinates)
    # If sizes are equal, x comes before y and y before z: the guide leaves this open.
    axis = np.argmax(sizes, axis=0)
    major = np.choose(axis, (x, y, z))
    size = np.where(major == 0, 1, np.abs(major))
    sign = np.where(major < 0, -1.0, 1.0)
    s = np.choose(axis, (-z * sign, x, x * sign))
    t = np.choose(axis, (-y, z * sign, -y))
    face = 2 * axis + (major < 0) + 6 * np.minimum(layer, texture.layers[0] // 6 - 1).astype(np.int64)
    return ((s / size + 1) / 2, (t / size + 1) / 2), face
