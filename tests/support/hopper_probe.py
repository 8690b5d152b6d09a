"""The questions that an H200 was asked on 2026-11-23: products, boxes, elected lanes, answers of barriers.

The records have the answers. Inputs follow from seeds (:func:`operands`). ``hopper_probe.cuh`` holds the kernels.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from matmill.config import Config
from matmill.emulator import Memory, run
from matmill.jit.compile import compile_ptx
from matmill.jit.source import Source, included
from matmill.launch import Argument, Launch, TensorMap

Array: TypeAlias = NDArray[Any]
#: Names of arrays with the fields of their tensor maps.
Maps: TypeAlias = Sequence[tuple[str, dict[str, Any]]]
FILE = Path(__file__).with_suffix(".cuh")
TARGET = "sm_90a"
#: Columns of the products whose bits are recorded.
N = 8
#: By name: the type in C++ and in NumPy.
FORMATS: dict[str, tuple[str, np.dtype[Any]]] = {
    "float16": ("matmill::Half", np.dtype(np.float16)),
    "bfloat16": ("matmill::BFloat", np.dtype(ml_dtypes.bfloat16)),
    "tf32": ("matmill::ptx::Tf32", np.dtype(np.float32)),
    "float8_e4m3fn": ("matmill::ptx::E4M3", np.dtype(ml_dtypes.float8_e4m3fn)),
    "float8_e5m2": ("matmill::ptx::E5M2", np.dtype(ml_dtypes.float8_e5m2)),
}
#: Kinds of numbers: of one scale, of many scales, all bit patterns that are finite, all bit patterns.
NUMBERS = ("normal", "scales", "finite", "any")
#: Instructions per product, each of 32 bytes of k: for 16-bit types k is 16 to 4096.
COUNTS = (1, 2, 3, 4, 16, 64, 256)


def unpacked(text: str, dtype: np.dtype[Any] | type[np.generic]) -> Array:
    """Return the elements of an array whose zlib-compressed bytes a record has in base64, in one dimension."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype)


@dataclass(frozen=True)
class Product:
    """A recorded product: ``count`` instructions on operands of ``form``; ``seed`` and ``numbers`` say which."""

    form: str
    count: int
    numbers: str
    a_registers: bool
    seed: int


def operands(product: Product) -> tuple[Array, Array, Array]:
    """Return a [64][k], B [N][k] and C [64][N] (float32) of a product."""
    rng = np.random.default_rng([product.seed, product.count, NUMBERS.index(product.numbers)])
    dtype = FORMATS[product.form][1]
    k = 32 * product.count // dtype.itemsize
    a, b = (_elements(rng, product, (rows, k)) for rows in (64, N))
    c = rng.standard_normal((64, N)) if product.numbers == "normal" else np.zeros((64, N))
    if product.numbers == "scales":
        c = rng.standard_normal((64, N)) * 2.0 ** rng.integers(-20, 20, (64, N))
    return a, b, c.astype(np.float32)


def _elements(rng: np.random.Generator, product: Product, shape: tuple[int, int]) -> Array:
    dtype = FORMATS[product.form][1]
    if product.numbers in {"finite", "any"}:
        words = np.dtype(f"u{dtype.itemsize}")
        drawn = rng.integers(0, np.iinfo(words).max, shape, words, endpoint=True)
        with np.errstate(invalid="ignore"):  # NaNs that signal
            finite = np.isfinite(drawn.view(dtype).astype(np.float64))
        # Of "any" one in 512 keeps its special value, so that not each sum is NaN.
        keep = finite | (rng.integers(0, 512, shape) == 0) if product.numbers == "any" else finite
        return np.where(keep, drawn, 0).view(dtype)
    values = rng.standard_normal(shape)
    if product.numbers == "scales":
        values *= 2.0 ** rng.integers(-6, 6, shape)
    return values.astype(dtype)


def source(entry: str, operand: str = "matmill::Half", **constants: int) -> Source:
    """Return the translation unit of all probes; products are of ``operand``."""
    config = Config.of(**{"N": N, "A_REGISTERS": 0, **constants})
    body = FILE.read_text(encoding="utf-8")
    text = f'{config.cxx()}\n#include "matmill/ptx/wgmma.cuh"\nusing Operand = {operand};\n#include "{FILE.name}"\n'
    return Source("hopper_probe", entry, text, ((FILE.name, body), *included(body)))


def boxes() -> Iterator[tuple[str, dict[str, Any], Array, tuple[int, int]]]:
    """Yield names, fields of the map, matrices and coordinates of the boxes that were loaded."""
    words = np.arange(64 * 128, dtype=np.uint16).reshape(64, 128)
    plain: dict[str, Any] = {"element": "uint16", "sizes": (128, 64), "strides": (256,)}
    for swizzle in (128, 64, 32):
        for width in (16, 32, 48, 64, 96, 128):
            if width <= swizzle:
                fields = {**plain, "box": (width // 2, 16), "swizzle": swizzle}
                yield f"{width} bytes, swizzled by {swizzle}", fields, words, (8, 3)
    for steps in ((1, 2), (1, 3), (2, 1), (2, 2)):
        fields = {**plain, "box": (32, 9), "element_strides": steps}
        yield f"element strides {steps}", fields, words, (8, 3)
        yield f"element strides {steps} at the edge", fields, words, (112, 60)
    for x, y in ((-8, 0), (0, -5), (-16, -1), (-200, 0), (0, 1000), (120, 62)):
        yield f"at ({x}, {y})", {**plain, "box": (32, 8)}, words, (x, y)
    for x in (3, -3, 4, -4, 125, 1):
        for swizzle in (0, 64):
            fields = {**plain, "box": (32, 8), "swizzle": swizzle}
            yield f"at ({x}, 2), swizzled by {swizzle}", fields, words, (x, 2)
    rng = np.random.default_rng(5)
    floats = rng.integers(0, 2**32, (16, 32), np.uint32)
    floats[0, :8] = [0x3F801000, 0x3F803000, 0x3F800FFF, 0x3F801001, 0x7F7FFFFF, 0x00001000, 0x7F800001, 0xFF800000]
    for element in ("float32", "tfloat32", "tfloat32_ftz", "float32_ftz"):
        fields = {"element": element, "sizes": (32, 16), "strides": (128,), "box": (32, 16)}
        yield f"random bits as {element}", fields, floats, (0, 0)
    yield "float32 from its second element on", {**fields, "element": "float32"}, floats, (1, 0)
    for element, size in (("float16", 2), ("bfloat16", 2), ("float32", 4), ("tfloat32", 4), ("float64", 8)):
        across = 64 // size
        fields = {"element": element, "sizes": (across, 4), "strides": (64,), "box": (across, 8), "nan_fill": True}
        yield f"NaN fill of {element}", fields, np.zeros((4, across), f"u{size}"), (0, 0)


def emulate(
    entry: str, arrays: dict[str, Array], numbers: Sequence[int] = (), *, maps: Maps = (), block: int = 32,
    shared: int = 1024, operand: str = "matmill::Half", late: bool = False, **constants: int,
) -> dict[str, Array]:  # fmt: skip
    """Launch an entry point with maps of some arrays, pointers to the others, and numbers; return all arrays."""
    memory = Memory()
    result = {name: array.copy() for name, array in arrays.items()}
    pointers = {name: memory.bind(name, array, access="rw") for name, array in result.items()}
    args: list[Argument] = [TensorMap(pointers[name], **fields) for name, fields in maps]
    args += [pointer for name, pointer in pointers.items() if name not in dict(maps)]
    args += [np.int32(number) for number in numbers]
    launch = Launch("hopper_probe", entry, (1, 1, 1), (block, 1, 1), tuple(args), shared, cluster=(1, 1, 1))
    # All entries are in one translation unit.
    report = run(compile_ptx(source("wgmma_bits", operand, **constants), TARGET), launch, memory, late_copies=late)
    assert report.ok, report.hazards
    return result


def emulated_product(product: Product, *, late: bool = False) -> Array:
    """Return the product's bits (uint32[64][N])."""
    a, b, d = operands(product)
    fields = {"element": "uint8", "strides": (32 * product.count,), "swizzle": 128}
    rows = {"A": 64, "B": N}
    result = emulate(
        "wgmma_bits",
        {"A": a, "B": b, "D": d, "done": np.zeros(1, np.uint32)},
        (product.count, 0, 0),
        maps=[(name, {**fields, "sizes": (32 * product.count, n), "box": (128, n)}) for name, n in rows.items()],
        block=128,
        shared=N * 128 + 1024 + 64 * 128 + 8,
        operand=FORMATS[product.form][0],
        late=late,
        A_REGISTERS=int(product.a_registers),
    )
    assert result["done"][0], "the operands never came"
    bits: Array = result["D"].view(np.uint32)
    return bits


def elected(mask: int) -> dict[str, Any]:
    """Return the lane that elect.sync names for a mask, and the lanes whose predicate is set."""
    lane, lanes = emulate(
        "elected_lanes", {"masks": np.array([mask], np.uint32), "found": np.zeros(2, np.uint32)}, (1,)
    )["found"]
    return {"elect.sync": hex(mask), "lane": int(lane), "true_in": hex(lanes)}


def parities() -> dict[str, Any]:
    """Return the answers of test_wait by arrivals and parity."""
    bits = int(emulate("parity_answers", {"answers": np.zeros(1, np.uint32)})["answers"][0])
    by_both = [[bool(bits >> (2 * n + p) & 1) for p in range(2)] for n in range(6)]
    return {"instruction": "test_wait", "by_arrivals_and_parity": by_both}
