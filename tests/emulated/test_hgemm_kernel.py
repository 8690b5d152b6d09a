"""16-bit products on the tensor cores: any strides, with repacked operands or without, every tile, split-K, matmul."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import matmill
from matmill import arch as arches
from matmill import choose as choosing
from matmill import reference
from matmill.arch import ARCHES, Arch
from matmill.choose import choose
from matmill.config import Config, Configs
from matmill.dtypes import ALL
from matmill.kernel import GemmOperands, Production
from matmill.kernels.hgemm import HGEMM, space
from matmill.kernels.hgemm.tiles import with_vector_widths
from matmill.kernels.shared.model import Prediction
from matmill.launch import Pointer
from matmill.problem import Gemm
from support.mma_product import LAYOUTS, ODD, SMALL, Product, mma_tiles, order
from support.strided import COLUMN, ROW, Layout

Array = NDArray[Any]


@pytest.mark.parametrize("arch", ["t4", "h200"])
@pytest.mark.parametrize(("a", "b"), LAYOUTS, ids=order)
def test_every_pair_of_layouts(a: Layout, b: Layout, arch: str) -> None:
    product = Product((72, 80, 136), a, b, ROW, arch=arch)
    config = product.kernel.config
    assert (config["A_VEC"], config["B_VEC"], config["D_VEC"]) == (8, 8, 8)
    (report,) = product.run()
    assert report.ok
    assert product.right()
    # Transposed or not: no fragment, no copy and no epilogue staging buffer meets a bank conflict.
    assert report.counters.bank_conflicts == 0


# -- repacked copies ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["t4", "h200"])
@pytest.mark.parametrize(("a", "b"), LAYOUTS, ids=order)
def test_repacked_matrices_are_copied_16_bytes_at_a_time(a: Layout, b: Layout, arch: str) -> None:
    m, n, k = 67, 75, 131
    product = Product((m, n, k), replace(a, start=1), replace(b, pad=1), ROW, arch=arch, pads="AB")
    repacking, main = product.run()
    assert repacking.ok
    assert main.ok
    assert product.right()
    # Eight-element pieces of A and B that hold something, once for each of the 2 x 2 tiles of D across them.
    copied = (m if a.transposed else k, k if a.transposed else m), (k if b.transposed else n, n if b.transposed else k)
    pieces = 2 * sum(-(-length // 8) * count for length, count in copied)
    if arch == "h200":
        assert main.counters.cp_async_bytes == pieces * 16
        assert main.counters.global_load_requests == 0
    else:
        assert main.counters.global_load_bytes == pieces * 16
    assert main.counters.bank_conflicts == 0
    runs = ((k, m) if a.transposed else (m, k)), ((n, k) if b.transposed else (k, n))
    read = repacking_reads(*runs[0], start=1, pitch=runs[0][1]) + repacking_reads(
        *runs[1], start=0, pitch=runs[1][1] + 1
    )
    assert repacking.counters.global_load_bytes == read
    assert repacking.counters.global_store_bytes == pieces // 2 * 16


def repacking_reads(count: int, length: int, start: int, pitch: int) -> int:
    """Count the bytes that repacking reads of runs whose first one starts `start` elements behind 16 aligned bytes.

    A whole vector comes from one aligned one, or from two that are inside the matrix; others element by element.
    """
    read, end = 0, (count - 1) * pitch + length
    for run in range(count):
        for first in range(0, length, 8):
            place = run * pitch + first
            shift = (start + place) % 8
            shifted = place >= shift and place - shift + 16 <= end
            read += 32 if shift and shifted and first + 8 <= length else 16
    return read


@pytest.mark.parametrize(("start", "requests"), [(0, 1), (1, 2 + 8), (2, 2 + 8), (4, 2 + 8), (8, 1)])
def test_what_starts_anywhere_is_repacked_from_aligned_vectors(start: int, requests: int) -> None:
    # One row of 32 whole vectors: a warp, whose first and last lane find no aligned vector inside the matrix.
    product = Product((1, 8, 256), Layout(start=start), ROW, ROW, pads="A")
    product.product.problem = replace(product.product.problem, a_align=2)
    repacking, _ = product.run()
    assert repacking.counters.global_load_requests == requests
    assert product.right()


@pytest.mark.parametrize("parts", [1, 3])
def test_launches_name_their_pointers_as_a_frame_binds_them(parts: int) -> None:
    product = Product((37, 41, 267), ODD, Layout(step=3), ODD, c=COLUMN, dtype="bfloat16", parts=parts, pads="AB")
    launches = product.kernel.launches(product.product.problem, SOMEWHERE)
    assert [launch.entry for launch in launches] == ["repack", "hgemm", "splitk_reduce"][: 2 + (parts > 1)]
    pointers = {arg for launch in launches for arg in launch.args if isinstance(arg, Pointer)}
    assert pointers <= {*POINTERS, Pointer("no workspace", 0), Pointer("no bias", 0)}


SOMEWHERE = GemmOperands(
    Pointer("A", 1), Pointer("B", 2), Pointer("C", 3), Pointer("D", 4), workspace=Pointer("workspace", 5)
)
POINTERS = {value for value in vars(SOMEWHERE).values() if isinstance(value, Pointer)}


def test_repacking_is_refused_where_it_takes_too_much_memory_or_finds_nothing() -> None:
    h200 = ARCHES["h200"]
    for n, fits in ((32767, True), (32769, False)):
        odd = Gemm(n, n, n, dtype=ALL["float16"], a_align=2, b_align=2, d_align=2)
        repacking = [
            HGEMM.with_config(config) for config in space(odd, h200) if config["REPACK_A"] and config["REPACK_B"]
        ]
        assert repacking
        reasons = {kernel.why_not(odd, h200) for kernel in repacking}
        assert reasons == ({None} if fits else {f"repacked copies take {4 * 32769 * 32832} > {2**32} bytes"})
    empty = Gemm(9, 9, 0, dtype=ALL["float16"], a_align=2, b_align=2)
    assert not any(config["REPACK_A"] or config["REPACK_B"] for config in space(empty, h200))
    asked = HGEMM.with_config(with_vector_widths(SMALL, empty, "A").launched(SPLIT_K=1, REPACK_A=1, REPACK_B=0))
    assert asked.why_not(empty, h200) == "k = 0 leaves nothing to repack"
    direct = HGEMM.with_config(with_vector_widths(SMALL, odd, "A").launched(SPLIT_K=1, REPACK_A=0, REPACK_B=0))
    assert direct.why_not(odd, h200) == "A_VEC = 8 needs aligned, contiguous rows in multiples of 8 elements"


# -- tiles ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arch", "config"),
    [("t4", config) for config in mma_tiles("t4")],
    ids=lambda x: x if isinstance(x, str) else "-".join(str(x[name]) for name in ("BM", "BN", "BK", "A_VEC")),
)
def test_every_tile_shape(arch: str, config: Config) -> None:
    odd = config["A_VEC"] == 1
    side = 1 if odd else 8
    product = Product((128 + side, 128 + side, 64 + side), ROW, ROW, ROW, arch=arch, config=config)
    assert product.kernel.config["A_VEC"] == config["A_VEC"]
    assert all(report.ok for report in product.run())
    assert product.right()


# -- the public path --------------------------------------------------------------------------------------------------


def drawn(seed: int, *shape: int, dtype: str = "float16") -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(ALL[dtype].numpy)


def emulated(*args: Any, **options: Any) -> Any:
    return matmill.matmul(*args, executor="emulator", **options)


def repacked_alone(problem: Gemm, arch: Arch) -> tuple[Config, ...]:
    """Return the configurations that pad, or all where nothing can be padded."""
    configs = space(problem, arch)
    return tuple(config for config in configs if config["REPACK_A"] or config["REPACK_B"]) or configs


def smallest(_problem: Gemm, config: Configs, _arch: Arch) -> Prediction:
    """Stand for a cost model: small tiles are quickest to emulate."""
    return Prediction(1.0 * config["BM"] * config["BN"], {}, ())


@contextmanager
def all_repacked() -> Iterator[None]:
    """Send every product to HGEMM, padded where that can be."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(choosing, "PRODUCTION", (Production(HGEMM, repacked_alone, smallest),))
        choose.cache_clear()
        yield
    choose.cache_clear()


@pytest.fixture
def padding() -> Iterator[None]:
    with all_repacked():
        yield


@pytest.mark.usefixtures("padding")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("left", "right"), [((3, 33, 17), (3, 17, 21)), ((33, 17), (4, 17, 21)), ((4, 1, 17, 9), (1, 3, 9, 11))]
)
def test_padded_batches_and_matrices_that_they_share(left: tuple[int, ...], right: tuple[int, ...], dtype: str) -> None:
    a, b = drawn(0, *left, dtype=dtype), drawn(1, *right, dtype=dtype)
    assert reference.check(emulated(a, b), a, b).ok


@pytest.mark.usefixtures("padding")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_padding_lets_nothing_leak(dtype: str) -> None:
    """What is not finite stays in its row or column, beside the ends of A and B too; beta = 0 reads no C."""
    a, b, c = drawn(0, 35, 21, dtype=dtype), drawn(1, 21, 43, dtype=dtype), drawn(2, 35, 43, dtype=dtype)
    a[3, 20], a[34, 9], b[20, 42], b[15, 3] = np.nan, np.inf, -np.inf, np.nan
    for left, right in ((a, b), (np.asfortranarray(a), b), (a, np.asfortranarray(b))):
        result = emulated(left, right, c=np.full_like(c, np.nan), beta=0)
        assert reference.check(result, a, b).ok
        assert np.isfinite(result[[0, 33]][:, [0, 41]]).all()
        before = c.copy()
        before[7, 9] = np.nan
        assert reference.check(emulated(left, right, c=before, alpha=0.5, beta=-2), a, b, before, alpha=0.5, beta=-2).ok


@pytest.mark.usefixtures("padding")
@pytest.mark.parametrize("transposed", [False, True])
def test_a_repacked_gram_matrix_is_copied_once_and_symmetric_to_the_bit(*, transposed: bool) -> None:
    a = drawn(0, 131, 130).T if transposed else drawn(0, 130, 131)
    gram = emulated(a, a.T)
    assert reference.check(gram, a, a.T).ok
    assert gram.tobytes() == gram.T.copy().tobytes()
    # A column has one element in each row, in any layout; and it is one copy.
    column = drawn(1, 77, 1)
    assert (emulated(column, column.T) == column * column.T).all()
    problem = Gemm(130, 130, 131, ALL["float16"], a_align=2, b_align=2, gram=True)
    config = repacked_alone(problem, ARCHES["h200"])[0]
    assert HGEMM.with_config(config.launched(SPLIT_K=1)).workspace(problem) == -(-130 * 136 * 2 // 256) * 256


def test_on_a_gpu_without_asynchronous_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arches, "DEFAULT", "t4")
    a, b = drawn(0, 140, 540), drawn(1, 540, 140)
    assert choose(Gemm(140, 140, 540, dtype=ALL["float16"]), ARCHES["t4"]).kernel.entry == "hgemm"
    assert reference.check(emulated(a, b[:, 3:]), a, b[:, 3:]).ok
