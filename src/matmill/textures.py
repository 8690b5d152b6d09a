"""Textures and surfaces as a host describes them: an array, its texels, and the modes of a fetch.

CUDA runtime API, "cudaTextureDesc" and "cudaResourceDesc"; CUDA C++ programming guide, "Texture and Surface Memory".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from matmill.arrays import host_array
from matmill.errors import ArgumentError, DTypeError, unknown_name

#: PTX's names for the kinds of textures, in words.
GEOMETRIES = {
    "1d": "1-D", "2d": "2-D", "3d": "3-D", "a1d": "layered 1-D", "a2d": "layered 2-D", "cube": "cubemap",
    "acube": "layered cubemap",
}  # fmt: skip
ADDRESS_MODES = ("wrap", "mirror", "clamp", "border")
_ELEMENTS = tuple(np.dtype(kind) for kind in ("u1", "i1", "u2", "i2", "u4", "i4", "f2", "f4"))
_CHANNELS = (1, 2, 4)
_FACES = 6


@dataclass(frozen=True, eq=False)
class Image:
    """The part that textures and surfaces share: an array whose elements are texels of ``channels`` numbers each.

    The last axis is x, the one before it y, then z or, with ``layered``, the layers. Two or four channels are one more
    axis after x, without gaps.
    """

    array: Any
    channels: int = field(default=1, kw_only=True)
    layered: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.array, list | tuple):
            fix = "Call numpy.asarray. Several levels of a mipmap are not emulated."
            raise self._refused("array", f"a {type(self.array).__name__}", "one array", fix)
        array = host_array(self._label, self.array)
        object.__setattr__(self, "array", array)
        if array.dtype not in _ELEMENTS:
            raise DTypeError(
                argument=self._label,
                got=f"elements of {array.dtype}",
                wanted="integers of 8, 16 or 32 bits, float16 or float32",
                fix="Pass a view: float64 is int32 with channels=2, complex64 is float32 with channels=2.",
            )
        if self.channels not in _CHANNELS:
            raise self._refused("channels", repr(self.channels), "1, 2 or 4", "Pad three channels to four.")
        if self.channels > 1 and (array.shape[-1:] != (self.channels,) or array.strides[-1] != array.itemsize):
            got = f"shape {array.shape}, strides {array.strides}"
            raise self._refused("channels", got, f"{self.channels} contiguous elements in the last axis", "Copy it.")
        if not array.size:
            raise self._refused("array", f"shape {array.shape}", "at least one texel", "Pass None for no texture.")
        if any(stride % self.texel_bytes for stride in self._outer(array.strides)):
            got = f"shape {array.shape}, strides {array.strides}"
            wanted = f"texels that are multiples of their {self.texel_bytes} bytes apart"
            raise self._refused("array", got, wanted, "Pass a copy of it.")
        dimensions = len(self._outer(array.shape))
        if not (2 if self.layered else 1) <= dimensions <= 3:
            wanted = "2 or 3 axes, the first of them the layers" if self.layered else "1 to 3 axes"
            raise self._refused("array", f"shape {array.shape}", wanted, "Channels, if any, are the last axis.")

    @property
    def _label(self) -> str:
        return type(self).__name__

    def _refused(self, name: str, got: str, wanted: str, fix: str) -> ArgumentError:
        return ArgumentError(argument=f"{self._label}.{name}", got=got, wanted=wanted, fix=fix)

    def _outer(self, numbers: tuple[int, ...]) -> tuple[int, ...]:
        """Append the channels, if there are several, to numbers for each axis of the array."""
        return numbers[:-1] if self.channels > 1 else numbers

    @property
    def texel_bytes(self) -> int:
        """Bytes per texel."""
        return int(self.array.itemsize) * self.channels

    @property
    def geometry(self) -> str:
        """PTX's name of its kind: "2d", "a2d" with layers."""
        return f"a{self._plain}d" if self.layered else f"{self._plain}d"

    @property
    def _plain(self) -> int:
        return len(self._outer(self.array.shape)) - self.layered

    @property
    def extents(self) -> tuple[int, ...]:
        """Texels along x, y and z."""
        return self._outer(self.array.shape)[::-1][: self._plain]

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from a texel to the next along x, y and z."""
        return self._outer(self.array.strides)[::-1][: self._plain]

    @property
    def layers(self) -> tuple[int, int]:
        """The number of layers and the bytes from one to the next. Without layers it is one."""
        return (self.array.shape[0], self.array.strides[0]) if self.layered else (1, 0)


@dataclass(frozen=True, eq=False)
class Texture(Image):
    """A texture of one level over an array, for a parameter ``cudaTextureObject_t``. It sees a kernel's stores there.

    ``array`` is a NumPy array, or one of another library in host memory: ``(width,)``, ``(height, width)`` or
    ``(depth, height, width)``; with ``layered`` the first axis has the layers, with ``cubemap`` the six faces (of each
    layer). Two or four ``channels`` are one more axis after these.

    ``address`` is the address mode, for coordinates outside: "clamp", "border", "wrap" or "mirror", for all axes or one
    for each of x, y and z. As in CUDA "wrap" and "mirror" need ``normalized`` coordinates, from 0 to 1, and are "clamp"
    without. ``border`` is the value outside in mode "border", one number or one for each channel. ``filter`` is "point"
    or "linear". ``read`` is "element", or "normalized" for integers of 8 and 16 bits as floats in [0, 1] or [-1, 1].

    Raises :class:`~matmill.errors.ArgumentError` for what the CUDA runtime refuses too.

    >>> import numpy as np
    >>> Texture(np.zeros((4, 6, 2), np.float16), channels=2, filter="linear").extents
    (6, 4)
    """

    cubemap: bool = field(default=False, kw_only=True)
    address: str | Sequence[str] = field(default="clamp", kw_only=True)
    filter: str = field(default="point", kw_only=True)
    normalized: bool = field(default=False, kw_only=True)
    read: str = field(default="element", kw_only=True)
    border: float | Sequence[float] = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        for mode in self._given:
            if mode not in ADDRESS_MODES:
                raise unknown_name("Texture.address", mode, ADDRESS_MODES)
        if not isinstance(self.address, str) and len(self._given) != self._plain:
            raise self._refused("address", repr(self.address), f"one mode, or {self._plain}", "x comes first.")
        if self.filter not in {"point", "linear"}:
            raise unknown_name("Texture.filter", self.filter, ("point", "linear"))
        if self.read not in {"element", "normalized"}:
            raise unknown_name("Texture.read", self.read, ("element", "normalized"))
        if self.filter == "linear" and not self.floats:
            wanted = 'a texture that is read as floats, such as read="normalized"'
            raise self._refused("filter", f'"linear" of {self.array.dtype} elements', wanted, 'Use filter="point".')
        if any(self.border_color) and not self.floats:
            raise self._refused("border", repr(self.border), "0 for a texture of integers", "Omit it.")
        if self.cubemap:
            self._check_cubemap()

    def _check_cubemap(self) -> None:
        faces, *rest = self._outer(self.array.shape)
        if len(rest) != 2 or rest[0] != rest[1] or faces % _FACES or (faces != _FACES and not self.layered):
            wanted = f"{_FACES} square faces" + (", or a multiple" if self.layered else "")
            raise self._refused(
                "cubemap", f"shape {self.array.shape}", wanted, "A face is an element of the first axis."
            )
        if not self.normalized:
            raise self._refused("normalized", "False", "True: directions are normalized", "Pass normalized=True.")

    @property
    def _given(self) -> tuple[str, ...]:
        return (self.address,) if isinstance(self.address, str) else tuple(self.address)

    @property
    def floats(self) -> bool:
        """True if a fetch returns floats; 32-bit integers stay integers whatever ``read`` is."""
        return bool(self.array.dtype.kind == "f") or (self.read == "normalized" and self.array.itemsize < 4)

    @property
    def geometry(self) -> str:
        """PTX's name of its kind: "2d", "a2d" with layers, "cube" or "acube"."""
        return super().geometry if not self.cubemap else "acube" if self.layered else "cube"

    @property
    def _plain(self) -> int:
        return 2 if self.cubemap else super()._plain

    @property
    def layers(self) -> tuple[int, int]:
        """The number of layers, or faces of all layers, and the bytes from one to the next."""
        return (self.array.shape[0], self.array.strides[0]) if self.cubemap else super().layers

    @property
    def modes(self) -> tuple[str, ...]:
        """The address mode along each axis as it takes effect; cubemap faces clamp at their edges."""
        if self.cubemap:
            return ("clamp", "clamp")
        modes = self._given * (self._plain if len(self._given) == 1 else 1)
        return modes if self.normalized else tuple("border" if mode == "border" else "clamp" for mode in modes)

    @property
    def border_color(self) -> tuple[float, ...]:
        """The value of each channel outside the array, in mode "border"."""
        if isinstance(self.border, Sequence):
            if len(self.border) != self.channels:
                wanted = f"a number, or {self.channels}"
                raise self._refused("border", repr(self.border), wanted, "Give one for each channel.")
            return tuple(float(each) for each in self.border)
        return (float(self.border),) * self.channels


@dataclass(frozen=True, eq=False)
class Surface(Image):
    """A surface over an array, for a parameter ``cudaSurfaceObject_t``: kernels read and write the array in place.

    ``array`` and ``channels`` are those of a :class:`Texture`; its rows must be contiguous, and a read-only array may
    only be read. The faces of a cubemap are layers.

    >>> import numpy as np
    >>> Surface(np.zeros((3, 4, 5), np.uint8), layered=True).layers
    (3, 20)
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.extents[0] > 1 and self.strides[0] != self.texel_bytes:
            got = f"texels {self.strides[0]} bytes apart"
            raise self._refused("array", got, f"rows without gaps, {self.texel_bytes} bytes", "Pass a copy of it.")

    @property
    def row_bytes(self) -> int:
        """Bytes per row."""
        return self.extents[0] * self.texel_bytes
