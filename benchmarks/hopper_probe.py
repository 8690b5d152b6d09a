"""Asks a Hopper GPU what its documentation leaves open, and writes the answers as JSON.

    python benchmarks/hopper_probe.py --out hopper_h200.json

``wgmma``     the bits of products of all types, for many k and kinds of numbers, with A in shared memory and registers
``offsets``   what a descriptor's base offset does to a tile that starts between multiples of 1024
``boxes``     what TMA leaves in shared memory: boxes narrower than the swizzle, element strides, coordinates that are
              negative or no multiples of 16 bytes, rounding to tf32, fill with NaN; and how many bytes a barrier gets
``maps``      tensor maps that the driver encodes otherwise than matmill, or that only one of them refuses
``addresses`` the bits of mapped addresses in a cluster, and the lane of elect.sync
``barriers``  answers to waits that lag behind, and how long try_wait takes to say no
``ignored``   what bulk copies with .ignore_oob leave: with an NVRTC of PTX 9.2, or machine code from another one

    python benchmarks/hopper_probe.py --write-code probe.cubin       where there is such an NVRTC, no GPU needed
    python benchmarks/hopper_probe.py --out hopper_h200.json --code probe.cubin

A kernel that faults ends its process, not the probe: the answer is then "fault", and the next question has a process of
its own. Arrays are zlib-compressed bytes in base64 (:func:`unpacked`). Inputs follow from seeds (:func:`operands`).
"""

from __future__ import annotations

import argparse
import base64
import json
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from matmill.config import Config
from matmill.errors import MatmillError
from matmill.jit.compile import Binary, compile_source
from matmill.jit.nvrtc import compiler_version
from matmill.jit.source import Source, included
from matmill.launch import Argument, Dim3, Launch, Pointer, TensorMap
from matmill.runtime.gpu import GPU, unavailable
from matmill.tensor_map import ELEMENTS, encode

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
    """Return the bytes of an array as text."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 9)).decode()


def unpacked(text: str, dtype: np.dtype[Any] | type[np.generic]) -> Array:
    """Return the elements of :func:`packed`, in one dimension."""
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


def products() -> Iterator[Product]:
    """Yield all products that are recorded."""
    for form in FORMATS:
        for count in COUNTS:
            for numbers in NUMBERS:
                for a_registers in (False, True) if count <= 16 else (False,):
                    yield Product(form, count, numbers, a_registers, seed=count)


def source(entry: str, operand: str = "matmill::Half", **constants: int) -> Source:
    """Return the translation unit of all probes; products are of ``operand``."""
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
        """Launch an entry point with maps of some arrays, pointers to the others, and numbers; give all arrays."""
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
        """Return the product's bits (uint32[64][N])."""
        a, b, d = operands(product)
        width = 32 * product.count
        maps = [
            (
                name,
                {"element": "uint8", "sizes": (width, rows), "strides": (width,), "box": (128, rows), "swizzle": 128},
            )
            for name, rows in (("A", 64), ("B", N))
        ]
        result = self.run(
            "wgmma_bits",
            {"A": a, "B": b, "D": d, "done": np.zeros(1, np.uint32)},
            (product.count, shift, base),
            maps=maps,
            block=128,
            shared=N * 128 + 1024 + 64 * 128 + 8,
            operand=FORMATS[product.form][0],
            A_REGISTERS=int(product.a_registers),
        )
        if not result["done"][0]:
            raise ValueError(f"{product}: the operands never came")
        bits: Array = result["D"].view(np.uint32)
        return bits


@dataclass(frozen=True)
class Question:
    """One thing to ask a device: what it is, in the record, and what adds the answer to it."""

    about: dict[str, Any]
    ask: Callable[[Device], dict[str, Any]]


def wgmma_bits() -> Iterator[Question]:
    """Yield all products: their bits."""

    def ask(device: Device, product: Product) -> dict[str, Any]:
        return {"bits": packed(device.product(product))}

    for product in products():
        yield Question(asdict(product), partial(ask, product=product))


def base_offsets() -> Iterator[Question]:
    """Tell whether a product is the same where A's tile starts ``shift`` bytes behind a multiple of 1024."""
    product = Product("float16", 4, "normal", a_registers=False, seed=1)

    def ask(device: Device, shift: int, base: int) -> dict[str, Any]:
        result = device.product(product, shift=shift, base=base)
        return {"same": bool(np.array_equal(result, device.product(product)))}

    for row in range(8):
        for base in range(8):
            yield Question({"shift": 128 * row, "base_offset": base}, partial(ask, shift=128 * row, base=base))


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


def boxes() -> Iterator[Question]:
    """Yield what each box leaves in shared memory, and at which expected bytes its barrier's phase ended."""

    def ask(device: Device, fields: dict[str, Any], matrix: Array, first: tuple[int, int]) -> dict[str, Any]:
        size, strides = matrix.dtype.itemsize, fields.get("element_strides", (1, 1))
        # What may count: the box, or what element strides leave of it in either dimension.
        (full, left), (rows, rows_left) = (
            (extent, -(-extent // stride)) for extent, stride in zip(fields["box"], strides, strict=True)
        )
        guesses = sorted({x * y * size for x in (full, left) for y in (rows, rows_left)})
        ended, dump = [], np.zeros(0, np.uint8)
        for expected in guesses:
            arrays = {"X": matrix, "dump": np.zeros(8192, np.uint8), "done": np.zeros(1, np.uint32)}
            numbers = (8192, expected, *first)
            answer = device.run("box_bytes", arrays, numbers, maps=[("X", fields)], shared=8192 + 8)
            if answer["done"][0]:
                ended.append(expected)
            dump = answer["dump"]
        return {"guesses": guesses, "ended_at": ended, "shared": packed(dump)}

    for name, fields, matrix, first in _boxes():
        about = {"name": name, **fields, "x": first[0], "y": first[1]}
        yield Question(about, partial(ask, fields=fields, matrix=matrix, first=first))


def _random_map(rng: np.random.Generator) -> TensorMap:
    """Return a map, valid more often than not: each field is drawn apart, now and then beyond its limit."""
    element = str(rng.choice(sorted(ELEMENTS)))
    size, rank = ELEMENTS[element].itemsize, int(rng.integers(1, 6))
    swizzle, interleave = (int(x) for x in (rng.choice([0, 32, 64, 128]), rng.choice([0, 0, 0, 16, 32])))
    odd = rng.random(8) < 0.08
    across = int(rng.integers(1, max(2, (swizzle or 256) // 16 + 1))) * 16 // size
    box = (max(across, 1), *(int(x) for x in rng.integers(1, 257 + odd[0], rank - 1)))
    sizes = tuple(int(x) for x in rng.choice([1, 2, 3, 16, 100, 5000, 2**20, 2**32 + odd[1]], rank))
    strides = tuple(int(x) * (16 if not odd[2] else 8) for x in rng.choice([1, 2, 16, 333, 2**20, 2**35], rank - 1))
    steps = tuple(int(x) for x in rng.integers(1, 10 if odd[3] else 9, rank))
    address = int(rng.integers(1, 2**36)) * (32 if not odd[4] else 8)
    return TensorMap(
        Pointer("X", address),
        element,
        sizes,
        strides,
        box,
        swizzle,
        element_strides=steps if rng.random() < 0.3 else (1,) * rank,
        interleave=interleave,
        promotion=int(rng.choice([0, 64, 128, 256])),
        nan_fill=bool(rng.random() < 0.1),
    )


def _chosen_maps() -> Iterator[TensorMap]:
    """Yield maps of one dimension, and small ones of two: each type, swizzle, and some widths of the box."""
    for element, kind in ELEMENTS.items():
        for swizzle in (0, 32, 64, 128):
            for nbytes in (8, 16, 32, 48, 64, 128, 256):
                for sizes in ((1,), (64,), (1, 1), (64, 64)):
                    across, strides = nbytes // kind.itemsize, (512,) * (len(sizes) - 1)
                    if across:
                        box = (across, 4)[: len(sizes)]
                        yield TensorMap(Pointer("X", 4096), element, sizes, strides, box, swizzle)


def _by_driver(tensor: TensorMap, strides: Sequence[int]) -> str | None:
    """Return the driver's first 64 bytes in hexadecimal, or None where it refuses."""
    from cuda.bindings import driver  # noqa: PLC0415 — only GPU users need it

    def named(name: str, size: int, prefix: str = "") -> Any:
        kind = getattr(driver, f"CUtensorMap{name}")
        (member,) = (m for m in kind if m.name.endswith(f"_{prefix}{size}B" if size else "_NONE"))
        return member

    fills = driver.CUtensorMapFloatOOBfill
    status, encoded = driver.cuTensorMapEncodeTiled(
        getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{tensor.element.upper()}"),
        len(tensor.sizes),
        tensor.pointer.address,
        [driver.cuuint64_t(size) for size in tensor.sizes],
        [driver.cuuint64_t(stride) for stride in strides],
        [driver.cuuint32_t(extent) for extent in tensor.box],
        [driver.cuuint32_t(stride) for stride in tensor.element_strides],
        named("Interleave", tensor.interleave, "INTERLEAVE_"),
        named("Swizzle", tensor.swizzle, "SWIZZLE_"),
        named("L2promotion", tensor.promotion, "L2_"),
        fills.CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA
        if tensor.nan_fill
        else fills.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    return None if int(status) else b"".join(int(word).to_bytes(8, "little") for word in encoded.opaque)[:64].hex()


def _disagreements(device: Device, maps: Iterable[TensorMap]) -> dict[str, Any]:
    """Say how many maps were compared and how many both take, and those on which driver and matmill differ."""
    result: list[dict[str, Any]] = []
    count = taken = 0
    with device.gpu.within():
        for tensor in maps:
            count += 1
            driver = _by_driver(tensor, tensor.strides)
            try:
                ours, reason = encode(tensor, tensor.pointer.address)[:64].hex(), ""
            except MatmillError as refused:
                ours, reason = None, str(refused)
            taken += driver == ours is not None
            if driver != ours:
                # With one dimension there is no stride, and an empty list may count as an error of its own.
                padded = _by_driver(tensor, tensor.strides or (16,))
                result.append(
                    {**asdict(tensor), "driver": driver, "one_stride": padded, "ours": ours, "reason": reason}
                )
    return {"count": count, "both_take": taken, "different": result}


def maps() -> Iterator[Question]:
    """Yield maps that driver and matmill encode or judge differently."""
    rng = np.random.default_rng(7)
    drawn = [_random_map(rng) for _ in range(4000)]
    yield Question({"maps": "random"}, lambda device: _disagreements(device, drawn))
    yield Question({"maps": "chosen"}, lambda device: _disagreements(device, _chosen_maps()))


def addresses() -> Iterator[Question]:
    """Yield mapped addresses of clusters, per block its own and those of all, 32 bits and generic.

    The lane of elect.sync comes with them.
    """

    def mapped(device: Device, size: int) -> dict[str, Any]:
        words = device.run("mapped_addresses", {"words": np.zeros(64 * size, np.uint64)}, cluster=size)["words"]
        return {"blocks": [[hex(word) for word in row[: 2 + 2 * size]] for row in words.reshape(size, 64)]}

    def elected(device: Device, mask: int) -> dict[str, Any]:
        arrays = {"masks": np.array([mask], np.uint32), "found": np.zeros(2, np.uint32)}
        lane, lanes = device.run("elected_lanes", arrays, (1,))["found"]
        return {"lane": int(lane), "true_in": hex(lanes)}

    for size in (1, 2, 4, 8):
        yield Question({"cluster": size}, partial(mapped, size=size))
    for mask in (0xFFFFFFFF, 0xFFFFFFFE, 0x80000000, 0x0000FF00, 0x80000001, 0xAAAAAAAA):
        yield Question({"elect.sync": hex(mask)}, partial(elected, mask=mask))


def barriers() -> Iterator[Question]:
    """Return the answers of test_wait by arrivals and parity, and the nanoseconds of try_wait by its hint."""

    def parities(device: Device) -> dict[str, Any]:
        bits = int(device.run("parity_answers", {"answers": np.zeros(1, np.uint32)})["answers"][0])
        return {"by_arrivals_and_parity": [[bool(bits >> (2 * n + p) & 1) for p in range(2)] for n in range(6)]}

    def times(device: Device) -> dict[str, Any]:
        hints = np.array([0, 0, 0, 1000, 10000, 100000, 1000000, 10000000, 0], np.uint32)
        arrays = {"hints": hints, "times": np.zeros_like(hints), "answers": np.zeros_like(hints)}
        result = device.run("try_wait_times", arrays, (len(hints),))
        return {name: result[name].tolist() for name in ("hints", "times", "answers")}

    yield Question({"instruction": "test_wait"}, parities)
    yield Question({"instruction": "try_wait"}, times)


def ignored(code: Path | None) -> Iterator[Question]:
    """Yield what copies of 64 bytes with so many ignored ones leave, and whether the expected bytes end their phase."""

    def ask(device: Device, expected: int, left: int, right: int) -> dict[str, Any]:
        binary = compile_source(source("ignored_bytes"), TARGET)
        if code is not None:
            binary = replace(binary, cubin=code.read_bytes())
        arrays: dict[str, Array] = {
            "from": np.arange(1, 65, dtype=np.uint8),
            "dump": np.zeros(64, np.uint8),
            "done": np.zeros(1, np.uint32),
        }
        answer = device.run("ignored_bytes", arrays, (expected, left, right), binary=binary)
        return {"ended": bool(answer["done"][0]), "shared": answer["dump"].tolist()}

    for left, right in ((0, 0), (3, 0), (0, 5), (3, 5), (15, 15)):
        for expected in sorted({64, 64 - left - right}):
            about = {"left": left, "right": right, "expected": expected}
            yield Question(about, partial(ask, expected=expected, left=left, right=right))


def answers(section: str, code: Path | None) -> list[dict[str, Any]]:
    """Return all answers of a section. A process that faults is followed by one that starts at the next question."""
    result: list[dict[str, Any]] = []
    while True:
        command = [sys.executable, __file__, "--section", section, "--first", str(len(result))]
        if code is not None:
            command += ["--code", str(code)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        # Each question is a line, and its answer the next one, which is missing where it faulted.
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        result += [{**about, **answer} for about, answer in zip(lines[::2], lines[1::2], strict=False)]
        if len(lines) % 2:
            result.append({**lines[-1], "fault": done.stderr.splitlines()[-1:]})
        elif done.returncode == 0:
            return result
        else:
            return [*result, {"failed": done.stderr[-2000:]}]


def main() -> None:
    """Ask everything, each section in processes of its own, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--out", type=Path, help="the JSON file to write")
    chosen.add_argument("--section", help="print questions and answers of this section alone")
    chosen.add_argument("--write-code", type=Path, help="compile, write the machine code there, and end")
    parser.add_argument("--first", type=int, default=0, help="of a section: start at this question")
    parser.add_argument("--code", type=Path, help="machine code that --write-code wrote, for ``ignored``")
    options = parser.parse_args()
    if options.write_code:
        options.write_code.write_bytes(compile_source(source("ignored_bytes"), TARGET).cubin)
        return
    reason = unavailable()
    if reason is not None:
        raise SystemExit(f"this needs a GPU: {reason}")
    sections: dict[str, Callable[[], Iterator[Question]]] = {
        "wgmma": wgmma_bits,
        "ignored": partial(ignored, options.code),
        "offsets": base_offsets,
        "addresses": addresses,
        "barriers": barriers,
        "maps": maps,
        "boxes": boxes,
    }
    device = Device()
    if options.section:
        for question in islice(sections[options.section](), options.first, None):
            print(json.dumps(question.about), flush=True)
            print(json.dumps(question.ask(device)), flush=True)
        return
    result: dict[str, Any] = {"gpu": device.gpu.arch.name, "nvrtc": compiler_version()}
    for name in sections:
        result[name] = answers(name, options.code)
        options.out.write_text(
            json.dumps(result, indent=1), encoding="utf-8"
        )  # what is known, should the next one fail
        print(f"{name}: {len(result[name])} answers", flush=True)


if __name__ == "__main__":
    main()
