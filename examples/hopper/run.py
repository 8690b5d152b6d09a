"""Four kernels for Hopper, each checked against float64: a copy by TMA, and three products on wgmma.

    tile_copy             TMA loads a box, TMA stores it, with two stages
    wgmma_product         one warp group per tile of D, one stage
    persistent_product    warp-specialized: a producer, two consumers, TMA stores
    multicast_product     clusters of two blocks share one operand

Run it: python examples/hopper/run.py [--executor gpu] [--kernel NAME]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from matmill import emulator
from matmill.config import Config
from matmill.dtypes import ALL, BF16, F32, DType
from matmill.jit.compile import compile_ptx, compile_source
from matmill.jit.source import Source, included
from matmill.kernel import ceil_div
from matmill.launch import Argument, Dim3, Launch, Pointer, TensorMap
from matmill.runtime.gpu import GPU, unavailable

Array: TypeAlias = NDArray[Any]
Pointers: TypeAlias = Mapping[str, Pointer]
#: A file of the kernel's own, a text in it, and what to put in its place.
Change: TypeAlias = tuple[str, str, str]

FOLDER = Path(__file__).parent
TARGET = "sm_90a"
#: Bytes within which the products' tensor maps swizzle, and so many 16-bit elements.
SWIZZLE, ACROSS = 128, 64
#: Elements after each row of D, and rows after its last one, that a kernel must leave alone.
MARGIN = 8
#: Dynamic shared memory that a block of an H200 may have, and its SMs.
MOST_SHARED, SMS = 232448, 132


@dataclass(frozen=True)
class Trial:
    """One kernel on its operands, all of one type, and D of ``result``; ``launch`` makes the launch from pointers.

    ``wanted`` is D in float64, from which an element may differ by ``limit``. The kernel's file is in ``folder``, and
    the kernel writes to what is ``written``.
    """

    kernel: str
    config: Config
    operands: dict[str, Array]
    result: DType
    launch: Callable[[Pointers], Launch]
    wanted: Array
    limit: Array
    folder: Path = FOLDER
    written: tuple[str, ...] = ("D",)

    def source(self, changes: Sequence[Change] = ()) -> Source:
        """Return the translation unit, after ``changes`` to its own files."""
        dtype = ALL[next(iter(self.operands.values())).dtype.name]
        files = {*FOLDER.glob("*.cuh"), self.folder / f"{self.kernel}.cuh"}
        own = {f"hopper/{path.name}": path.read_text(encoding="utf-8") for path in files}
        for name, old, new in changes:
            own[f"hopper/{name}"] = own[f"hopper/{name}"].replace(old, new)
        head = f'#include "{dtype.header}"\n' if dtype.header else ""
        text = f'{self.config.cxx()}\n{head}using Scalar = {dtype.cxx};\n#include "hopper/{self.kernel}.cuh"\n'
        library = head + "".join(own.values()).replace('#include "hopper/', "// ")
        return Source(f"hopper/{self.kernel}", self.kernel, text, tuple(sorted([*own.items(), *included(library)])))

    def arrays(self) -> dict[str, Array]:
        """Return the operands, and a D with its margin, all of whose bits are set: NaN in each type of float."""
        rows, columns = self.wanted.shape
        poison = np.full((rows + 1, columns + MARGIN), -1, f"i{self.result.itemsize}")
        return {**self.operands, "D": poison.view(self.result.numpy)}

    def excess(self, d: Array) -> float:
        """Return the largest error of D over its limit; infinite where a value is missing or the margin was written."""
        rows, columns = self.wanted.shape
        error = np.abs(d[:rows, :columns].astype(np.float64) - self.wanted)
        margin = d.view(f"i{self.result.itemsize}").copy()
        margin[:rows, :columns] = -1
        if not (error <= self.limit).all() or not (margin == -1).all():
            return np.inf
        return float((error / self.limit.clip(np.finfo(np.float64).tiny)).max())


def box_map(
    pointer: Pointer, shape: tuple[int, int], pitch: int, dtype: DType, *, box: tuple[int, int], swizzle: int = SWIZZLE
) -> TensorMap:
    """Give map of a row-major matrix whose rows are ``pitch`` elements apart, for boxes of so many rows and columns."""
    return TensorMap(pointer, dtype.name, shape[::-1], (pitch * dtype.itemsize,), box[::-1], swizzle)


def copy(rows: int, columns: int, *, box: tuple[int, int] = (32, 64), blocks: int = 3, seed: int = 0) -> Trial:
    """Return ``tile_copy`` of a float32 matrix whose ``columns`` are a multiple of 4."""
    x = np.random.default_rng(seed).uniform(-1, 1, (rows, columns)).astype(np.float32)

    def launch(pointers: Pointers) -> Launch:
        maps = [
            box_map(pointers[name], x.shape, pitch, F32, box=box, swizzle=0)
            for name, pitch in (("X", columns), ("D", columns + MARGIN))
        ]
        args: tuple[Argument, ...] = (*maps, np.int32(rows), np.int32(columns))
        shared = 2 * (box[0] * box[1] * 4 + 8)
        return Launch("hopper/tile_copy", "tile_copy", (blocks, 1, 1), (32, 1, 1), args, shared, pdl=True)

    config = Config.of(ROWS=box[0], COLUMNS=box[1])
    return Trial("tile_copy", config, {"X": x}, F32, launch, x.astype(np.float64), np.zeros(x.shape))


def _operands(
    m: int, n: int, k: int, *, dtype: DType, config: Config, seed: int | None
) -> tuple[dict[str, Array], Array, Array]:
    """Return A and B as the kernel takes them, their product in float64, and the limit of errors of float32 sums.

    Without a seed nothing is drawn and multiplied: then only the shapes mean anything.

    Per 16 products a tensor core truncates 17 terms to 2^-25 of the largest one's exponent, and their sum to 2^-23:
    less than 16 times 2^-23 of the sum of all terms' sizes.
    """
    rng = np.random.default_rng(seed)
    if seed is None:
        a, b = (np.empty((rows, k), dtype.numpy) for rows in (m, n))
        product = limit = np.broadcast_to(np.float64(0), (m, n))
    else:
        a, b = (rng.uniform(-1, 1, (rows, k)).astype(dtype.numpy) for rows in (m, n))
        wide = a.astype(np.float64), b.T.astype(np.float64)
        product = wide[0] @ wide[1]
        limit = np.abs(wide[0]) @ np.abs(wide[1]) * max(k, 16) * 2.0**-23
    constants = dict(config.constants)
    stored = {
        "A": np.ascontiguousarray(a.T) if constants.get("A_TRANSPOSED") else a,
        "B": np.ascontiguousarray(b.T) if constants.get("B_TRANSPOSED") else b,
    }
    return stored, product, limit


def _maps(pointers: Pointers, operands: dict[str, Array], config: Config, rows: dict[str, int]) -> list[TensorMap]:
    """Return the maps of A and B: boxes of ``rows`` x 64 of k, or where they are transposed 64 of k x 64."""
    constants = dict(config.constants)
    return [
        box_map(
            pointers[name],
            (array.shape[0], array.shape[1]),
            array.shape[1],
            ALL[array.dtype.name],
            box=(ACROSS if constants.get(f"{name}_TRANSPOSED") else rows[name], ACROSS),
        )
        for name, array in operands.items()
    ]


def wgmma_product(m: int, n: int, k: int, *, dtype: DType = BF16, seed: int = 0, **constants: int) -> Trial:
    """Return ``wgmma_product``.

    Its constants are BN, A_TRANSPOSED, B_TRANSPOSED and A_REGISTERS; stored rows are multiples of 8.
    """
    config = Config.of(**{"BN": 128, "A_TRANSPOSED": 0, "B_TRANSPOSED": 0, "A_REGISTERS": 0, **constants})
    operands, wanted, limit = _operands(m, n, k, dtype=dtype, config=config, seed=seed)

    def launch(pointers: Pointers) -> Launch:
        maps = _maps(pointers, operands, config, {"A": 64, "B": config["BN"]})
        sizes = [np.int32(x) for x in (m, n, k, n + MARGIN)]
        grid = (ceil_div(n, config["BN"]), ceil_div(m, 64), 1)
        shared = (64 + config["BN"]) * SWIZZLE + 8
        args: tuple[Argument, ...] = (*maps, pointers["D"], *sizes)
        return Launch("hopper/wgmma_product", "wgmma_product", grid, (128, 1, 1), args, shared)

    return Trial("wgmma_product", config, operands, F32, launch, wanted, limit)


def _staged(
    kernel: str, config: Config, operands: dict[str, Array], product: tuple[Array, Array], numbers: tuple[int, ...]
) -> Callable[[dict[str, int], Dim3, Dim3], Trial]:
    """Return a product whose blocks stage tiles for two consumers: what is left are rows of boxes, grid and cluster."""
    dtype = ALL[operands["A"].dtype.name]
    wanted, limit = product
    (m, n), bn = wanted.shape, config["BN"]
    shared = config["STAGES"] * ((128 + bn) * SWIZZLE + 16) + 128 * bn * dtype.itemsize

    def trial(rows: dict[str, int], grid: Dim3, cluster: Dim3) -> Trial:
        def launch(pointers: Pointers) -> Launch:
            maps = _maps(pointers, operands, config, rows)
            d = box_map(pointers["D"], (m, n), n + MARGIN, dtype, box=(64, ACROSS))
            args: tuple[Argument, ...] = (*maps, d, *map(np.int32, numbers))
            return Launch(f"hopper/{kernel}", kernel, grid, (384, 1, 1), args, shared, cluster=cluster)

        rounded = limit + dtype.roundoff * (np.abs(wanted) + limit) + dtype.tiny
        return Trial(kernel, config, operands, dtype, launch, wanted, rounded)

    return trial


def stages(bn: int) -> int:
    """Count the stages that fit in shared memory beside the tile of D."""
    return (MOST_SHARED - 128 * bn * 2) // ((128 + bn) * SWIZZLE + 16)


def persistent_product(
    m: int, n: int, k: int, *, dtype: DType = BF16, blocks: int = SMS, seed: int | None = 0, **constants: int
) -> Trial:
    """Return ``persistent_product``. Constants: BN, STAGES, GROUP_M, B_TRANSPOSED; stored rows are multiples of 8."""
    bn = constants.get("BN", 256)
    config = Config.of(**{"BN": bn, "STAGES": stages(bn), "GROUP_M": 8, "B_TRANSPOSED": 0, **constants})
    operands, *product = _operands(m, n, k, dtype=dtype, config=config, seed=seed)
    tiles = ceil_div(m, 128) * ceil_div(n, bn)
    trial = _staged("persistent_product", config, operands, (product[0], product[1]), (m, n, k))
    return trial({"A": 128, "B": bn}, (min(blocks, tiles), 1, 1), (1, 1, 1))


def multicast_product(m: int, n: int, k: int, *, dtype: DType = BF16, seed: int | None = 0, **constants: int) -> Trial:
    """Return ``multicast_product``. Constants: BN, STAGES, SHARES_B; stored rows are multiples of 8."""
    bn = constants.get("BN", 128)
    config = Config.of(**{"BN": bn, "STAGES": stages(bn), "B_TRANSPOSED": 0, "SHARES_B": 1, **constants})
    operands, *product = _operands(m, n, k, dtype=dtype, config=config, seed=seed)
    trial = _staged("multicast_product", config, operands, (product[0], product[1]), (k,))
    tiles = ceil_div(m, 128), ceil_div(n, bn)
    if config["SHARES_B"]:
        return trial({"A": 128, "B": bn // 2}, (tiles[0] + tiles[0] % 2, tiles[1], 1), (2, 1, 1))
    return trial({"A": 64, "B": bn}, (tiles[0], tiles[1] + tiles[1] % 2, 1), (1, 2, 1))


def on_gpu(trial: Trial, device: GPU, times: int = 1) -> list[Array]:
    """Return D after each of so many launches, poisoned before each."""
    arrays, found = trial.arrays(), []
    binary = compile_source(trial.source(), TARGET)
    with ExitStack() as stack:
        held = {name: stack.enter_context(device.upload(array, name)) for name, array in arrays.items()}
        launch = trial.launch({name: one.pointer(name) for name, one in held.items()})
        d = arrays["D"]
        for _ in range(times):
            held["D"].write(d)
            device.launch(binary, launch)
            device.synchronize()
            found.append(held["D"].download(d.shape, d.dtype))
    return found


def in_emulator(
    trial: Trial, changes: Sequence[Change] = (), *, late_copies: bool = False, schedule: int = 0
) -> tuple[Array, emulator.Report]:
    """Return D and the emulator's report, hazards among it; the options are those of ``emulator.run``."""
    memory, arrays = emulator.Memory(), trial.arrays()
    pointers = {
        name: memory.bind(name, array, access="rw" if name in trial.written else "r") for name, array in arrays.items()
    }
    ptx = compile_ptx(trial.source(changes), TARGET)
    report = emulator.run(ptx, trial.launch(pointers), memory, late_copies=late_copies, schedule=schedule)
    return arrays["D"], report


#: One trial of each kernel: small, with remainders in each dimension, and with more steps than stages.
SMALL: dict[str, Callable[[], Trial]] = {
    "tile_copy": lambda: copy(100, 300),
    "wgmma_product": lambda: wgmma_product(100, 136, 200),
    "persistent_product": lambda: persistent_product(300, 264, 328, blocks=3),
    "multicast_product": lambda: multicast_product(200, 136, 456, STAGES=3),
}


def main() -> None:
    """Run the kernels and print how far they are from float64."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = "emulator" if unavailable() else "gpu"
    parser.add_argument("--executor", choices=("gpu", "emulator"), default=here, help="default here: %(default)s")
    parser.add_argument("--kernel", choices=SMALL, help="run this one alone")
    options = parser.parse_args()
    for name in [options.kernel] if options.kernel else SMALL:
        trial = SMALL[name]()
        d = on_gpu(trial, GPU.get(0))[0] if options.executor == "gpu" else in_emulator(trial)[0]
        excess = trial.excess(d)
        if not excess <= 1:
            raise SystemExit(f"{name} differs from float64 by {excess:.3g} of what rounding allows")
        sizes = " x ".join(map(str, trial.wanted.shape))
        print(f"{name}: {sizes} {trial.result.name}, {excess:.3f} of the error that rounding allows")


if __name__ == "__main__":
    main()
