"""What the warp-specialised kernel is compiled for: tiles x layouts x ways that D leaves x epilogues x precisions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from matmill.dtypes import BF16, F16, F32, DType
from matmill.kernel import Kernel
from matmill.kernels.wgmma import WGMMA
from matmill.kernels.wgmma.tiles import EXAMPLES, Shape, configured
from matmill.problem import Epilogue, Gemm
from support.strided import H200

#: Rows, columns and k: all tiles suit them.
_EXTENT = 8192
_PACKED, _TRANSPOSED = (_EXTENT, 1), (1, _EXTENT)
#: Strides of A and B. Both K-major comes first.
LAYOUTS = {
    "tn": (_PACKED, _TRANSPOSED),
    "tt": (_PACKED, _PACKED),
    "nn": (_TRANSPOSED, _TRANSPOSED),
    "nt": (_TRANSPOSED, _PACKED),
}
#: Ways that D leaves: what a problem is given for each, and the slices of k.
WAYS: dict[str, tuple[dict[str, Any], int]] = {
    "TMA": ({}, 1),
    "TMA, transposed": ({"d_strides": _TRANSPOSED}, 1),
    "ordinary stores": ({"d_align": 2}, 1),
    "ordinary stores, transposed": ({"d_strides": _TRANSPOSED, "d_align": 2}, 1),
    "float32": ({"out_dtype": F32}, 1),
    "float32, one at a time": ({"out_dtype": F32, "d_strides": _TRANSPOSED}, 1),
    "float32, off 16 bytes": ({"out_dtype": F32, "d_align": 4}, 1),
    "partial sums": ({}, 2),
    "partial sums, off 16 bytes": ({"n": _EXTENT - 1}, 2),
}
#: Epilogues: which C and bias are read, and how much an activation computes, decides registers.
EPILOGUES: dict[str, dict[str, Any]] = {
    "plain": {},
    "C": {"has_c": True},
    "row bias": {"epilogue": Epilogue("row", 1, None)},
    "row bias, gelu": {"epilogue": Epilogue("row", 1, "gelu")},
    "row bias, gelu, C": {"has_c": True, "epilogue": Epilogue("row", 1, "gelu")},
    "column bias, silu, C": {"has_c": True, "epilogue": Epilogue("column", 2, "silu")},
    "column bias, relu": {"epilogue": Epilogue("column", 1, "relu")},
    "gelu": {"epilogue": Epilogue(None, 1, "gelu")},
    "gelu_tanh": {"epilogue": Epilogue(None, 1, "gelu_tanh")},
}


@dataclass(frozen=True)
class Variant:
    """A tile with what its kernel is compiled for."""

    shape: Shape
    layout: str = "tn"
    way: str = "TMA"
    epilogue: str = "plain"
    precision: str = "default"
    dtype: DType = field(default=BF16)

    def __str__(self) -> str:
        shape = self.shape
        tile = f"{shape.bm}x{shape.bn}{' alternating' if shape.pingpong else ''} {shape.cluster[0]}x{shape.cluster[1]}"
        return f"{tile}, {self.layout}, {self.way}, {self.epilogue}, {self.precision} {self.dtype.name}"

    @property
    def kernel(self) -> Kernel[Gemm] | None:
        """The kernel, or None where it refuses the combination."""
        a, b = LAYOUTS[self.layout]
        given, slices = WAYS[self.way]
        size = {"m": _EXTENT, "n": _EXTENT, "k": _EXTENT} | {key: given[key] for key in given.keys() & {"n"}}
        rest = {key: value for key, value in given.items() if key not in size}
        problem = Gemm(
            **size, dtype=self.dtype, a_strides=a, b_strides=b, precision=self.precision, **rest,
            **EPILOGUES[self.epilogue],
        )  # fmt: skip
        kernel = WGMMA.with_config(configured(self.shape, problem, H200, slices=slices))
        return kernel if kernel.why_not(problem, H200) is None else None


def everything() -> Iterator[Variant]:
    """Yield every tile in all layouts, in all ways that D leaves, with all epilogues, and in all precisions.

    Not each with each: epilogues are compiled for one layout, but for the most demanding, and other types for one way.
    """
    for shape in EXAMPLES:
        for layout, way, precision in product(LAYOUTS, WAYS, ("default", "high")):
            yield Variant(shape, layout, way, precision=precision)
        for way, epilogue in product(WAYS, EPILOGUES):
            if epilogue != "plain" and not way.startswith("partial"):
                yield Variant(shape, "tn", way, epilogue)
        for layout in LAYOUTS:
            yield Variant(shape, layout, "TMA", "row bias, gelu, C", "high")
            yield Variant(shape, layout, "ordinary stores", "row bias, gelu, C")
            yield Variant(shape, layout, dtype=F16)
        for way, epilogue in product(
            ("float32", "float32, off 16 bytes", "partial sums"), ("plain", "row bias, gelu, C")
        ):
            if epilogue == "plain" or not way.startswith("partial"):
                yield Variant(shape, "tn", way, epilogue, "tf32", F32)
