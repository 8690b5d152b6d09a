"""Small products for every class of configuration of the warp-specialised kernel, run in the emulator and on a GPU."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product as pairs
from math import prod

import numpy as np

from matmill.config import Config
from matmill.dtypes import ALL, F32
from matmill.kernel import Kernel
from matmill.kernels.pieces import METHODS
from matmill.kernels.shared.exchange import exchanged
from matmill.kernels.wgmma import WGMMA
from matmill.kernels.wgmma.tiles import EXAMPLES, Shape, configured, staging_bytes, unaligned
from matmill.problem import ACTIVATIONS, Gemm
from support.strided import COLUMN, H200, ROW, Layout
from support.strided_product import StridedProduct

BF16, F16 = ALL["bfloat16"], ALL["float16"]
PAD7, PAD11 = (Layout(transposed=True, pad=pad) for pad in (7, 11))
SQUARE, SMALL, TALL = Shape(128, 128, 2), Shape(64, 64, 1), Shape(192, 192, 3)
TURNS = Shape(128, 128, 2, pingpong=True)


@dataclass(frozen=True)
class Case:
    """A product, the shape of its tiles, A and B exchanged or not, slices of k, SMs, stages, A in registers, pieces.

    Few SMs give blocks several tiles, few stages give k-steps several rounds. 0 stages: as many as there is room for.
    """

    name: str
    shape: Shape
    sizes: tuple[int, int, int]
    swap: bool = False
    slices: int = 1
    sms: int = 2
    stages: int = 0
    in_registers: bool = False
    pieces: int = 0
    given: dict[str, object] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return self.name

    def product(self) -> StridedProduct:
        """Return the product on fresh numbers; rows of A and columns of B in pieces have many exponents."""
        product = StridedProduct(self.sizes, **self.given)  # type: ignore[arg-type]
        if self.pieces:
            for x in (product.arrays["A"], product.arrays["B"].swapaxes(1, 2)):
                numbers = 3 * np.arange(len(x))[:, None, None] + np.arange(x.shape[1])[:, None]
                x[...] = x * np.float32(2) ** (numbers % 7).astype(np.float32)
        return product

    def kernel(self, problem: Gemm) -> Kernel[Gemm]:
        """Return the kernel with the constants for it."""
        return WGMMA.with_config(self.config(problem))

    def config(self, problem: Gemm) -> Config:
        """Return a configuration of these constants; what TMA cannot read is repacked."""
        repack = [
            name
            for name in unaligned(exchanged(problem) if self.swap else problem)
            if not self.pieces and (name == "B" or not self.in_registers)
        ]
        config = configured(
            self.shape, problem, H200, swap=self.swap, slices=self.slices, repack=repack,
            in_registers=self.in_registers, pieces=self.pieces,
        )  # fmt: skip
        if self.stages:
            staging = staging_bytes(config)
            stage = (config["SHARED_BYTES"] - staging) // config["STAGES"]
            config = config.replace(STAGES=self.stages, SHARED_BYTES=self.stages * stage + staging)
        return config.launched(SMS=self.sms)


def _named(shape: Shape) -> str:
    cluster = "" if shape.cluster == (1, 1) else f" cluster {shape.cluster[0]}x{shape.cluster[1]}"
    return f"{shape.bm}x{shape.bn} by {shape.consumers}{' alternating' if shape.pingpong else ''}{cluster}"


def _least(shape: Shape) -> tuple[int, int, int]:
    """Return two rows or columns of tiles, where that is cheaper, and remainders in m, n and k."""
    rows, columns = shape.bm * shape.cluster[0], shape.bn * shape.cluster[1]
    m, n = (rows + 8, max(columns - 24, 8)) if rows <= columns else (rows - 24, columns + 8)
    return m, n, 136


#: Blocks that share both operands, by fewer parts than blocks or as many; columns of which eight are left over.
_LARGE_CLUSTERS = (
    Shape(64, 8, 1, cluster=(2, 2)),
    Shape(64, 24, 1, cluster=(2, 2)),
    Shape(64, 16, 1, cluster=(4, 1)),
    Shape(128, 48, 2, cluster=(2, 1)),
    Shape(64, 40, 1, cluster=(4, 1)),
    Shape(256, 80, 2, cluster=(2, 1)),
    Shape(64, 32, 1, cluster=(1, 4)),
    Shape(192, 112, 3, cluster=(1, 2)),
    Shape(64, 56, 1, cluster=(1, 2)),
)
#: Each tile, with one work tile more than blocks, rounds of two stages, and remainders in m, n and k.
SHAPED = tuple(
    Case(_named(shape), shape, _least(shape), sms=prod(shape.cluster), stages=2, given={"b": COLUMN})
    for shape in (*EXAMPLES, *_LARGE_CLUSTERS)
)
#: All layouts of A, B and D; of one tile with A and B exchanged.
LAYOUTS = tuple(
    Case(
        f"A {'transposed' if a.transposed else 'row'}, B {'transposed' if b.transposed else 'row'}, "
        f"D {'transposed' if d.transposed else 'row'}{', exchanged' if swap else ''}, {_named(shape)}",
        shape, sizes, swap=swap, sms=1, given={"a": a, "b": b, "d": d, "dtype": F16},
    )
    for shape, sizes, swap in ((SQUARE, (136, 72, 72), False), (SMALL, (72, 56, 136), True))
    for a, b, d in pairs((ROW, COLUMN), (ROW, COLUMN), (ROW, COLUMN))
)  # fmt: skip
#: The narrowest tile with more columns than biases are loaded at a time.
_WIDE = Shape(64, 192, 2, pingpong=True)
#: Epilogues, each way that D is stored.
EPILOGUES = (
    *(
        Case(f"bias and {activation}", SQUARE, (130, 72, 72), given={"bias": "row", "activation": activation})
        for activation in ACTIVATIONS
    ),
    Case("biases of 192 columns, float32 D", _WIDE, (130, 184, 72), stages=2, given={"bias": "row", "out_dtype": F32}),
    Case("column bias, C, alpha", SMALL, (70, 72, 72), given={"bias": "column", "c": COLUMN, "alpha": -1.5}),
    Case("biases of 192 columns", _WIDE, (130, 184, 72), stages=2, given={"bias": "row"}),
    Case("column bias, exchanged", SMALL, (70, 72, 72), swap=True, given={"bias": "column", "bias_step": 2}),
    Case("float32 D", SMALL, (70, 72, 72), given={"out_dtype": F32, "c": ROW}),
    Case(
        "transposed float32 D",
        SMALL,
        (70, 73, 72),
        given={"out_dtype": F32, "d": Layout(transposed=True, pad=1)},
    ),
    Case("float32 D of odd pitch", SMALL, (70, 73, 72), given={"out_dtype": F32, "bias": "row", "activation": "gelu"}),
    Case("D of odd pitch", SMALL, (70, 73, 72), given={"d": Layout(pad=2, start=1), "c": ROW}),
    Case("transposed D of odd pitch", TURNS, (131, 73, 72), given={"d": Layout(transposed=True, pad=2, start=1)}),
    Case("D whose rows end within 16 bytes", SMALL, (70, 73, 72), given={"d": Layout(pad=7), "b": COLUMN}),
    Case("strided D", SMALL, (70, 73, 72), given={"d": Layout(step=2), "c": Layout(step=3)}),
    Case("strided D, exchanged", SMALL, (70, 73, 72), swap=True, given={"d": Layout(step=2)}),
)
#: 16-bit D whose rows follow each other, and leave as one run: odd and even, short ones, at any offset of a batch.
ONE_RUN = (
    *(
        Case(f"one run of {columns} columns, {start} elements behind 16 bytes", SMALL, (70, columns, 72), sms=1,
             given={"d": Layout(start=start), "b": COLUMN, "batch": 3})
        for columns, start in ((49, 0), (50, 2), (50, 1), (61, 5), (33, 7))
    ),
    Case("one run by turns", Shape(64, 96, 2, pingpong=True), (150, 77, 72), sms=1, given={"batch": 2, "b": COLUMN}),
    Case("one run of two groups, C and a row bias", SQUARE, (201, 99, 72), sms=1,
         given={"c": ROW, "bias": "row", "activation": "silu", "alpha": -1.5, "dtype": F16}),
    Case("one run, column bias", SMALL, (61, 35, 136), given={"batch": 2, "bias": "column"}),
    Case("one run, exchanged", SMALL, (51, 61, 72), swap=True, given={"d": COLUMN, "batch": 2}),
    Case("one run in a cluster along n", Shape(64, 64, 1, cluster=(1, 2)), (70, 41, 72), sms=2, given={"b": COLUMN}),
    Case("one run in a cluster along m", Shape(64, 64, 1, cluster=(2, 1)), (150, 41, 72), sms=2, given={"batch": 2}),
    Case("one run of rows of three", Shape(64, 8, 1), (130, 3, 72), given={"b": COLUMN, "d": Layout(start=3)}),
    Case("one run of few elements", Shape(64, 8, 1), (1, 3, 72), given={"b": COLUMN, "d": Layout(start=5)}),
    Case("one run, A in registers", SQUARE, (135, 73, 77), in_registers=True, given={"b": PAD7}),
    Case("one run, slices in a cluster", replace(SMALL, cluster_k=2), (70, 41, 200), given={"b": COLUMN}),
)  # fmt: skip
#: float32 D whose rows start off 16 bytes: every offset, tiles whose rows are padded or swizzled, slices of k.
FLOATS = (
    *(
        Case(f"float32 D, {start} elements behind 16 bytes, and {pad} apart", SMALL, (70, 72, 72),
             given={"out_dtype": F32, "d": Layout(pad=pad, start=start), "c": ROW})
        for start, pad in ((0, 1), (1, 0), (1, 2), (2, 0), (2, 3), (3, 0))
    ),
    Case("float32 D in padded rows", Shape(64, 96, 1), (70, 191, 72), sms=1,
         given={"out_dtype": F32, "b": COLUMN, "bias": "column", "activation": "gelu", "c": COLUMN, "alpha": -1.5}),
    Case("float32 D off 16 bytes, exchanged", SMALL, (73, 70, 72), swap=True,
         given={"out_dtype": F32, "d": Layout(transposed=True, pad=1)}),
    Case("float32 D by turns", TURNS, (131, 131, 72), sms=1,
         given={"out_dtype": F32, "b": COLUMN, "bias": "row", "activation": "silu"}),
    Case("float32 D of three columns", Shape(64, 32, 1), (70, 3, 72),
         given={"out_dtype": F32, "b": COLUMN, "d": Layout(pad=2, start=1)}),
    Case("float32 D of odd batches", Shape(64, 32, 1), (61, 33, 72), sms=1,
         given={"out_dtype": F32, "b": COLUMN, "batch": 3, "c": ROW, "bias": "row"}),
    Case("float32 sums of slices", SQUARE, (130, 73, 200), slices=2, given={"b": COLUMN, "c": ROW}),
    Case("float32 D, slices in a cluster", replace(SMALL, cluster_k=2), (70, 73, 200),
         given={"out_dtype": F32, "c": ROW, "alpha": 0.5}),
    Case("float32 D of tf32", TALL, (200, 73, 40), given={"dtype": F32, "precision": "tf32", "b": COLUMN}),
)  # fmt: skip
#: Operands that are repacked, batches, slices of k, promoted sums.
OPERANDS = (
    Case("odd pitches", SMALL, (70, 73, 77)),
    Case("odd pitches, transposed", SMALL, (70, 73, 77), swap=True, given={"a": COLUMN, "b": COLUMN}),
    Case("rows that end within 16 bytes", SMALL, (70, 72, 77), given={"a": Layout(pad=3), "b": PAD11}),
    Case("columns that end within 16 bytes", SMALL, (73, 75, 80), given={"a": PAD7, "b": Layout(pad=5)}),
    Case("strided operands", SMALL, (70, 73, 77), given={"a": Layout(step=3), "b": Layout(transposed=True, step=2)}),
    Case("a batch", SMALL, (60, 72, 136), given={"batch": 3, "c": ROW}),
    Case("an odd batch that shares B", SMALL, (61, 73, 77), swap=True, given={"batch": 3, "b": Layout(shared=True)}),
    Case("a batch that shares A", SMALL, (60, 72, 136), given={"batch": 3, "a": Layout(shared=True)}),
    Case("slices in a cluster", replace(SMALL, cluster_k=2), (70, 72, 200), given={"c": ROW, "alpha": 0.5}),
    Case("slices", SMALL, (70, 72, 200), slices=3, given={"alpha": -1.5, "c": ROW}),
    Case("more slices in a cluster, exchanged", replace(SMALL, cluster_k=4), (60, 73, 270), swap=True),
    Case("slices of two groups in a cluster", replace(SQUARE, cluster_k=2), (130, 72, 136), given={"b": COLUMN}),
    Case("a batch in clusters", replace(SMALL, cluster_k=2), (60, 40, 200),
         given={"batch": 3, "bias": "row", "d": COLUMN}),
    Case("slices of a batch, exchanged", SMALL, (70, 72, 200), slices=2, swap=True, given={"batch": 2, "c": COLUMN}),
    Case("slices by groups that alternate", TURNS, (136, 136, 200), slices=2, sms=1),
    Case("slices in clusters", Shape(128, 128, 2, cluster=(2, 1)), (200, 136, 200), slices=2, sms=4),
    Case("promoted sums", SQUARE, (70, 72, 328), given={"precision": "high"}),
    Case("promoted sums of groups that alternate", Shape(64, 128, 2, pingpong=True), (130, 136, 328), sms=1,
         given={"precision": "high", "bias": "row"}),
    Case("clusters along m of transposed operands", Shape(128, 128, 2, cluster=(2, 1)), (200, 136, 136), sms=2,
         given={"a": COLUMN}),
    Case("clusters along n of transposed operands", Shape(128, 128, 2, cluster=(1, 2)), (136, 200, 136), sms=2,
         given={"a": COLUMN}),
    Case("tf32", SQUARE, (130, 72, 200), given={"b": COLUMN, "dtype": F32, "precision": "tf32", "c": ROW}),
    Case("tf32, transposed and of odd pitch", SMALL, (70, 73, 77), given={"dtype": F32, "precision": "tf32"}),
    Case("tf32, exchanged slices", SMALL, (70, 73, 77), swap=True, slices=2,
         given={"dtype": F32, "precision": "tf32", "a": COLUMN, "batch": 2}),
    Case("part of a box of transposed operands", Shape(128, 112, 2), (130, 200, 136), given={"a": COLUMN}),
    Case("part of a box of a narrow tile", Shape(64, 56, 1), (70, 100, 136)),
    Case("part of a box in a cluster along m", Shape(128, 208, 2, cluster=(2, 1)), (200, 200, 136),
         given={"a": COLUMN}),
    Case("one element", SMALL, (1, 1, 1)),
    Case("tf32 of a contiguous column", SMALL, (9, 13, 1), given={"a": COLUMN, "dtype": F32, "precision": "tf32"}),
    Case("one row", Shape(64, 8, 1), (1, 136, 136), swap=True),
    Case("one column", Shape(64, 8, 1), (136, 1, 136), given={"b": COLUMN}),
)  # fmt: skip
#: A whose rows start anywhere, through registers: tiles of one and of two warp groups, alone and in clusters, K-major
#: and MN-major. Neighbours of elements of A are not finite. Rows of both layouts run by day.
_ODD, _ODD_COLUMNS = Layout(pad=1, start=1), Layout(transposed=True, pad=3, start=3)
REGISTERS = (
    *(
        Case(f"A in registers, {'columns' if a.transposed else 'rows'}, {_named(shape)}", shape,
             (shape.bm * shape.cluster[0] + 8, max(shape.bn - 24, 8), 205), sms=shape.cluster[0], stages=2,
             in_registers=True, given={"a": a, "b": COLUMN})
        for shape, layouts in (
            (Shape(128, 256, 2), (_ODD_COLUMNS, _ODD)),
            (Shape(64, 64, 1), (_ODD_COLUMNS, _ODD)),
            (Shape(128, 160, 2, cluster=(2, 1)), (_ODD, _ODD_COLUMNS)),
            (Shape(64, 8, 1), (_ODD, _ODD_COLUMNS)),
        )
        for a in layouts
    ),
    Case("A in registers, rows on 4 bytes", SQUARE, (135, 72, 206), in_registers=True, given={"a": Layout(pad=4)}),
    Case("A in registers, one step", SMALL, (61, 72, 60), in_registers=True, given={"a": _ODD}),
    Case("A in registers, both odd", SQUARE, (135, 73, 77), in_registers=True, given={"dtype": F16}),
    Case("B in registers, exchanged", SQUARE, (72, 135, 77), swap=True, in_registers=True, given={"a": PAD7}),
    Case("A in registers, float32 D", SMALL, (70, 73, 77), in_registers=True, given={"out_dtype": F32, "b": PAD7}),
    Case("A of a batch in registers", SMALL, (61, 72, 136), in_registers=True,
         given={"batch": 3, "a": _ODD_COLUMNS, "c": ROW, "bias": "row"}),
    Case("A in registers, slices in a cluster", replace(SMALL, cluster_k=2), (61, 72, 201), in_registers=True,
         given={"a": _ODD_COLUMNS}),
    Case("A in registers, slices", SQUARE, (135, 72, 333), slices=3, in_registers=True, given={"a": _ODD}),
)  # fmt: skip


def _split(name: str, shape: Shape, sizes: tuple[int, int, int], *, swap: bool = False, **given: object) -> list[Case]:
    """Return a product in pieces by each method, with the fewest stages, and several tiles for each block."""
    of_cluster = shape.cluster[0] * shape.cluster[1] * shape.cluster_k
    return [
        Case(f"{by}: {name}", shape, sizes, swap=swap, sms=of_cluster, stages=4, pieces=1 + index,
             given={"dtype": F32, "precision": by, **given})
        for index, by in enumerate(METHODS)
    ]  # fmt: skip


#: float32 in pieces: layouts, epilogues and tiles.
_NARROW, _ANY_START = Shape(64, 32, 1), Layout(pad=2, start=1)
_BACKWARDS = (Layout(backwards=True), Layout(transposed=True, pad=1, backwards=True))
PIECES = (
    *_split("rows and columns", SMALL, (70, 40, 200), b=COLUMN),
    *_split("columns and rows", SMALL, (70, 40, 200), a=COLUMN, d=COLUMN),
    *_split("rows", SMALL, (70, 36, 260)),
    *_split("columns", SMALL, (70, 72, 136), a=COLUMN, b=COLUMN),
    *_split("odd sizes", SMALL, (67, 41, 131), a=_ODD, b=_ODD_COLUMNS, d=_ANY_START),
    *_split("odd sizes, exchanged", _NARROW, (41, 67, 101), swap=True, a=_ANY_START, b=_ODD, d=_ANY_START),
    *_split("strided", SMALL, (70, 40, 99), a=Layout(step=3), b=Layout(transposed=True, step=2), d=Layout(step=2)),
    *_split("backwards", _NARROW, (70, 40, 99), a=_BACKWARDS[0], b=_BACKWARDS[1], d=_BACKWARDS[0]),
    *_split("one element for each row and column", _NARROW, (70, 40, 99), a=Layout(step=0, pad=1), b=COLUMN),
    *_split("a batch", SMALL, (60, 40, 136), batch=3, c=ROW),
    *_split("a batch that shares A", _NARROW, (60, 41, 150), batch=3, a=Layout(shared=True), b=COLUMN),
    *_split("an odd batch that shares B", SMALL, (61, 33, 101), swap=True, batch=3, b=Layout(shared=True), a=COLUMN),
    *_split("a Gram matrix", _NARROW, (70, 70, 150), gram=True),
    *_split("Gram matrices of columns", SMALL, (37, 37, 150), gram=True, a=Layout(transposed=True, pad=1), batch=2),
    *_split("C, alpha", SMALL, (70, 40, 136), c=COLUMN, alpha=-1.5),
    *_split("C is D", SMALL, (70, 40, 136), in_place=True, alpha=0.5),
    *_split("C is D, exchanged", _NARROW, (40, 70, 136), swap=True, in_place=True, d=_ODD, bias="row"),
    *_split("row bias and gelu", SMALL, (70, 41, 136), bias="row", activation="gelu", b=COLUMN),
    *_split("column bias and relu", SMALL, (70, 40, 136), bias="column", bias_step=2, activation="relu", c=ROW),
    *_split("slices in a cluster", replace(SMALL, cluster_k=2), (70, 40, 330), b=COLUMN, c=ROW),
    *_split("groups that alternate", Shape(64, 128, 2, pingpong=True), (130, 72, 200), b=COLUMN),
    *_split("slices in a cluster, exchanged", replace(_NARROW, cluster_k=4), (30, 70, 270), swap=True, bias="column"),
    *_split("a cluster along m", Shape(128, 64, 2, cluster=(2, 1)), (200, 40, 136), a=COLUMN, b=COLUMN),
    *_split("a cluster along n", Shape(128, 64, 2, cluster=(1, 2)), (136, 100, 136), b=ROW),
    *_split("three groups", Shape(192, 64, 3), (200, 24, 136), b=COLUMN, alpha=0.5),
)
ALL_CASES = (*SHAPED, *LAYOUTS, *EPILOGUES, *ONE_RUN, *FLOATS, *OPERANDS, *REGISTERS)
