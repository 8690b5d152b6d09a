"""Asks a Hopper GPU what its documentation leaves open, and writes the answers as JSON.

    python benchmarks/hopper_probe.py --out hopper_h200.json

``wgmma``     the bits of products of all types, for many k and kinds of numbers, with A in shared memory and registers
``boxes``     what TMA leaves in shared memory: boxes narrower than the swizzle, element strides, negative
              coordinates, rounding to tf32, fill with NaN; and how many bytes a barrier gets
``addresses`` the bits of mapped addresses in a cluster, the lane of elect.sync, and a descriptor's base offset
``barriers``  answers to waits that lag behind, and how long try_wait takes to say no
``ignored``   what bulk copies with .ignore_oob leave: with an NVRTC of PTX 9.2, or machine code from another one

    python benchmarks/hopper_probe.py --write-code probe.cubin       where there is such an NVRTC, no GPU needed
    python benchmarks/hopper_probe.py --out hopper_h200.json --code probe.cubin

Arrays are zlib-compressed bytes in base64 (:func:`unpacked`). Inputs follow from seeds (:func:`operands`).
"""

from __future__ import annotations

import argparse
import base64
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from matmill.config import Config
from matmill.errors import MatmillError
from matmill.jit.compile import Binary, compile_source, compiler_version
from matmill.jit.source import Source, included
from matmill.launch import Argument, Dim3, Launch, TensorMap
from matmill.runtime.gpu import GPU, unavailable

Array: TypeAlias = NDArray[Any]
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


def packed(array: Array) -> str:
    """The bytes of an array as text."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 9)).decode()


def unpacked(text: str, dtype: np.dtype[Any] | type[np.generic]) -> Array:
    """The elements of :func:`packed`, in one dimension."""
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
    """A [64][k], B [N][k] and C [64][N] (float32) of a product."""
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


def products() -> Iterator[Product]:
    """All products that are recorded."""
    for form in FORMATS:
        for count in COUNTS:
            for numbers in NUMBERS:
                for a_registers in (False, True) if count <= 16 else (False,):
                    yield Product(form, count, numbers, a_registers, seed=count)


def source(entry: str, operand: str = "matmill::Half", **constants: int) -> Source:
    """The translation unit of all probes; products are of ``operand``."""
    config = Config.of(**{"N": N, "A_REGISTERS": 0, **constants})
    body = FILE.read_text(encoding="utf-8")
    text = f'{config.cxx()}\n#include "matmill/ptx/wgmma.cuh"\nusing Operand = {operand};\n#include "{FILE.name}"\n'
    return Source("hopper_probe", entry, text, ((FILE.name, body), *included(body)))


class Device:
    """The GPU, and launches of the probe kernels on it."""

    def __init__(self) -> None:
        self.gpu = GPU.get(0)

    def run(
        self,
        entry: str,
        arrays: dict[str, Array],
        numbers: Sequence[int] = (),
        *,
        maps: Sequence[tuple[str, dict[str, Any]]] = (),
        block: int = 32,
        cluster: int = 1,
        shared: int = 1024,
        binary: Binary | None = None,
        operand: str = "matmill::Half",
        **constants: int,
    ) -> dict[str, Array]:
        """Launches an entry point with maps of some arrays, pointers to the others, and numbers; gives all arrays."""
        binary = binary or compile_source(source(entry, operand, **constants), TARGET)
        with ExitStack() as stack:
            held = {name: stack.enter_context(self.gpu.upload(array, name)) for name, array in arrays.items()}
            mapped = dict(maps)
            args: list[Argument] = [TensorMap(held[name].pointer(name), **fields) for name, fields in maps]
            args += [one.pointer(name) for name, one in held.items() if name not in mapped]
            args += [np.int32(number) for number in numbers]
            grid: Dim3 = (cluster, 1, 1)
            launch = Launch("hopper_probe", entry, grid, (block, 1, 1), tuple(args), shared, cluster=grid)
            self.gpu.launch(binary, launch)
            self.gpu.synchronize()
            return {name: held[name].download(array.shape, array.dtype) for name, array in arrays.items()}

    def product(self, product: Product, *, shift: int = 0, base: int = 0) -> Array:
        """The product's bits (uint32[64][N])."""
        a, b, d = operands(product)
        width = 32 * product.count
        maps = [
            (
                name,
                {"element": "uint8", "sizes": (width, rows), "strides": (width,), "box": (128, rows), "swizzle": 128},
            )
            for name, rows in (("A", 64), ("B", N))
        ]
        found = self.run(
            "wgmma_bits",
            {"A": a, "B": b, "D": d, "done": np.zeros(1, np.uint32)},
            (product.count, shift, base),
            maps=maps,
            block=128,
            shared=N * 128 + 1024 + 64 * 128 + 8,
            operand=FORMATS[product.form][0],
            A_REGISTERS=int(product.a_registers),
        )
        if not found["done"][0]:
            raise ValueError(f"{product}: the operands never came")
        bits: Array = found["D"].view(np.uint32)
        return bits


def wgmma_bits(device: Device) -> list[dict[str, Any]]:
    """All products with their bits."""
    return [{**asdict(product), "bits": packed(device.product(product))} for product in products()]


def base_offsets(device: Device) -> list[dict[str, Any]]:
    """Whether a product is the same where A's tile starts ``shift`` bytes behind a multiple of 1024."""
    product = Product("float16", 4, "normal", a_registers=False, seed=1)
    wanted = device.product(product)
    found = []
    for row in range(8):
        for base in range(8):
            same = np.array_equal(device.product(product, shift=128 * row, base=base), wanted)
            found.append({"shift": 128 * row, "base_offset": base, "same": same})
    return found


def _boxes() -> Iterator[tuple[str, dict[str, Any], Array, tuple[int, int]]]:
    """Name, fields of the map, the matrix, and coordinates of boxes to look at."""
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
    for x, y in ((-8, 0), (-3, 2), (0, -5), (-1, -1), (-200, 0), (0, 1000), (125, 62)):
        yield f"at ({x}, {y})", {**plain, "box": (32, 8)}, words, (x, y)
    rng = np.random.default_rng(5)
    floats = rng.integers(0, 2**32, (16, 32), np.uint32)
    floats[0, :8] = [0x3F801000, 0x3F803000, 0x3F800FFF, 0x3F801001, 0x7F7FFFFF, 0x00001000, 0x7F800001, 0xFF800000]
    for element in ("float32", "tfloat32", "tfloat32_ftz", "float32_ftz"):
        fields = {"element": element, "sizes": (32, 16), "strides": (128,), "box": (32, 16)}
        yield f"random bits as {element}", fields, floats, (0, 0)
    for element, size in (("float16", 2), ("bfloat16", 2), ("float32", 4), ("tfloat32", 4), ("float64", 8)):
        across = 64 // size
        fields = {"element": element, "sizes": (across, 4), "strides": (64,), "box": (across, 8), "nan_fill": True}
        yield f"NaN fill of {element}", fields, np.zeros((4, across), f"u{size}"), (0, 0)


def boxes(device: Device) -> list[dict[str, Any]]:
    """What each box leaves in shared memory, and at which expected bytes its barrier's phase ended."""
    found: list[dict[str, Any]] = []
    for name, fields, matrix, (x, y) in _boxes():
        record = {"name": name, **fields, "x": x, "y": y}
        try:
            found.append({**record, **_box(device, fields, matrix, (x, y))})
        except MatmillError as refused:
            found.append({**record, "refused": str(refused)})
    return found


def _box(device: Device, fields: dict[str, Any], matrix: Array, first: tuple[int, int]) -> dict[str, Any]:
    size, strides = matrix.dtype.itemsize, fields.get("element_strides", (1, 1))
    full = fields["box"][0] * fields["box"][1] * size
    # What may count: the box, the elements that element strides leave of it, in either dimension.
    across, down = (-(-extent // stride) for extent, stride in zip(fields["box"], strides, strict=True))
    guesses = sorted({full, across * down * size, fields["box"][0] * down * size, across * fields["box"][1] * size})
    ended, dump = [], np.zeros(0, np.uint8)
    for expected in guesses:
        arrays = {"X": matrix, "dump": np.zeros(8192, np.uint8), "done": np.zeros(1, np.uint32)}
        numbers = (8192, expected, *first)
        answer = device.run("box_bytes", arrays, numbers, maps=[("X", fields)], shared=8192 + 8)
        if answer["done"][0]:
            ended.append(expected)
        dump = answer["dump"]
    return {"guesses": guesses, "ended_at": ended, "shared": packed(dump)}


def addresses(device: Device) -> dict[str, Any]:
    """Mapped addresses of clusters of 1, 2, 4 and 8 blocks: per block its own and those of all, 32 bits and generic."""
    found: dict[str, Any] = {}
    for size in (1, 2, 4, 8):
        words = device.run("mapped_addresses", {"words": np.zeros(64 * size, np.uint64)}, cluster=size)["words"]
        found[f"cluster of {size}"] = [[hex(word) for word in row[: 2 + 2 * size]] for row in words.reshape(size, 64)]
    masks = np.array([0xFFFFFFFF, 0xFFFFFFFE, 0x80000000, 0x0000FF00, 0x80000001, 0xAAAAAAAA], np.uint32)
    arrays = {"masks": masks, "found": np.zeros(2 * len(masks), np.uint32)}
    answers = device.run("elected_lanes", arrays, (len(masks),))["found"].reshape(-1, 2)
    found["elect.sync"] = [
        {"mask": hex(mask), "lane": int(lane), "true_in": hex(lanes)}
        for mask, (lane, lanes) in zip(masks, answers, strict=True)
    ]
    found["base offset"] = base_offsets(device)
    return found


def barriers(device: Device) -> dict[str, Any]:
    """Answers of test_wait by arrivals and parity, and the nanoseconds of try_wait by its hint."""
    bits = int(device.run("parity_answers", {"answers": np.zeros(1, np.uint32)})["answers"][0])
    hints = np.array([0, 0, 0, 1000, 10000, 100000, 1000000, 10000000, 0], np.uint32)
    arrays = {"hints": hints, "times": np.zeros(len(hints), np.uint32), "answers": np.zeros(len(hints), np.uint32)}
    found = device.run("try_wait_times", arrays, (len(hints),))
    return {
        "test_wait": [
            {"arrivals": n, "parity": p, "true": bool(bits >> (2 * n + p) & 1)} for n in range(6) for p in range(2)
        ],
        "try_wait": [
            {"hint_ns": int(hint), "took_ns": int(took), "true": bool(answer)}
            for hint, took, answer in zip(hints, found["times"], found["answers"], strict=True)
        ],
    }


def ignored(device: Device, code: Path | None) -> list[dict[str, Any]]:
    """What copies of 64 bytes with so many ignored ones leave, and at which expected bytes their phase ended."""
    binary = compile_source(source("ignored_bytes"), TARGET)
    if code is not None:
        binary = replace(binary, cubin=code.read_bytes())
    elif "ignored_bytes" not in binary.ptx:
        return []
    found = []
    for left, right in ((0, 0), (3, 0), (0, 5), (3, 5), (15, 15)):
        for expected in sorted({64, 64 - left - right}):
            arrays: dict[str, Array] = {
                "from": np.arange(1, 65, dtype=np.uint8),
                "dump": np.zeros(64, np.uint8),
                "done": np.zeros(1, np.uint32),
            }
            answer = device.run("ignored_bytes", arrays, (expected, left, right), binary=binary)
            found.append(
                {
                    "left": left,
                    "right": right,
                    "expected": expected,
                    "ended": bool(answer["done"][0]),
                    "shared": answer["dump"].tolist(),
                }
            )
    return found


def main() -> None:
    """Asks everything and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--out", type=Path, help="the JSON file to write")
    chosen.add_argument("--write-code", type=Path, help="compile, write the machine code there, and end")
    parser.add_argument("--code", type=Path, help="machine code that --write-code wrote, for ``ignored``")
    options = parser.parse_args()
    if options.write_code:
        options.write_code.write_bytes(compile_source(source("ignored_bytes"), TARGET).cubin)
        return
    reason = unavailable()
    if reason is not None:
        raise SystemExit(f"this needs a GPU: {reason}")
    device = Device()
    probes: dict[str, Callable[[Device], Any]] = {
        "addresses": addresses,
        "barriers": barriers,
        "boxes": boxes,
        "wgmma": wgmma_bits,
        "ignored": partial(ignored, code=options.code),
    }
    found: dict[str, Any] = {"gpu": device.gpu.arch.name, "nvrtc": compiler_version()}
    for name, probe in probes.items():
        found[name] = probe(device)
        options.out.write_text(json.dumps(found, indent=1), encoding="utf-8")  # what is known, should the next one fail
        print(f"{name}: {len(found[name])} answers", flush=True)


if __name__ == "__main__":
    main()
