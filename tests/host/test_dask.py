"""inner and gram of Dask arrays: all types and chunks, files, refusals, and a cluster of which a worker is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from matmill import errors
from matmill.dtypes import ALL
from matmill.reference import check

da: Any = pytest.importorskip("dask.array", reason="matmill[dask] is not installed")
distributed: Any = pytest.importorskip("distributed", reason="matmill[dask] is not installed")
md: Any = import_module("matmill.dask")

Array = NDArray[Any]


def _numbers(*shape: int, dtype: str = "float32") -> Array:
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(ALL[dtype].numpy)


@pytest.mark.parametrize("dtype", ALL)
def test_blocks_of_any_length_in_all_types(dtype: str) -> None:
    for k, chunks in ((1000, 90), (1000, (1, 700, 299)), (7, 100), (1, 1), (0, 1), (30, (0, 30, 0))):
        e, f = _numbers(3, k, dtype=dtype), _numbers(k, 5, dtype=dtype)
        left = da.from_array(e, chunks=(3, chunks))
        d = md.inner(left, da.from_array(f, chunks=(chunks, 5)), alpha=0.5)
        assert (d.shape, d.dtype, d.npartitions) == ((3, 5), e.dtype, 1)
        assert check(d.compute(), e, f, alpha=0.5), (k, chunks)
        gram = md.gram(left.T).compute()
        assert check(gram, e, np.ascontiguousarray(e.T)), (k, chunks)
        assert np.array_equal(gram.view(np.uint8), np.ascontiguousarray(gram.T).view(np.uint8))


def test_blocks_are_cut_where_either_operand_s_are() -> None:
    e, f = _numbers(4, 100), _numbers(100, 2)
    d = md.inner(da.from_array(e, chunks=(4, 30)), da.from_array(f, chunks=(45, 2)))
    assert check(d.compute(), e, f)


def test_numbers_that_are_not_finite() -> None:
    e, f = _numbers(3, 64), _numbers(64, 3)
    e[1, 40], f[3, 0], f[50, 2] = np.nan, np.inf, -np.inf
    assert check(md.inner(da.from_array(e, chunks=(3, 9)), da.from_array(f, chunks=(9, 3))).compute(), e, f)


def test_the_same_chunks_give_the_same_bits() -> None:
    x = da.from_array(_numbers(999, 7), chunks=(20, 7))
    first = md.gram(x).compute(scheduler="threads")
    assert np.array_equal(first, md.gram(x).compute(scheduler="synchronous"))


def test_emulated_kernels_take_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MATMILL_EXECUTOR", "emulator")
    x = _numbers(300, 3)
    assert check(md.gram(da.from_array(x, chunks=(150, 3))).compute(scheduler="synchronous"), x.T, x)


def test_rows_that_nobody_has_counted() -> None:
    x = _numbers(200, 4)
    rows = da.from_array(x, chunks=(50, 4))
    some = rows[rows[:, 0] > 0]
    assert np.isnan(some.shape[0])
    assert check(md.gram(some).compute(), np.ascontiguousarray(x[x[:, 0] > 0].T), x[x[:, 0] > 0])
    with pytest.raises(errors.ShapeError, match=r"compute_chunk_sizes\(\)"):
        md.inner(some.T, some)


def test_refusals_come_before_anything_is_read() -> None:
    x = da.zeros((100, 8), chunks=(10, 8), dtype=np.float32)
    refused: tuple[tuple[Callable[[], Any], type[Exception], str], ...] = (
        (lambda: md.gram(x.rechunk((10, 4))), errors.ShapeError, r"2 blocks along axis 1.*x\.rechunk\(\{1: -1\}\)"),
        (lambda: md.inner(x, x), errors.ShapeError, "10 blocks along axis 0"),
        (lambda: md.inner(x.T, x[:50]), errors.ShapeError, r"wanted \(100, n\)"),
        (lambda: md.gram(x[0]), errors.ShapeError, "two dimensions"),
        (lambda: md.gram(np.zeros((3, 2))), errors.ArgumentError, "a Dask array, .*from_array"),
        (lambda: md.gram(x.astype(np.int64)), errors.DTypeError, "int64"),
        (lambda: md.inner(x.T, x.astype(np.float64)), errors.DTypeError, "e's float32"),
        (lambda: md.gram(x, alpha="2"), errors.ArgumentError, "a real number"),
    )
    for call, kind, words in refused:
        with pytest.raises(kind, match=words):
            call()


def test_files_are_read_in_blocks_and_may_not_shrink(tmp_path: Path) -> None:
    x = _numbers(1000, 6)
    file = tmp_path / "x.npy"
    np.save(file, x)
    rows = md.from_npy(file, rows=300)
    assert rows.chunks == ((300, 300, 300, 100), (6,))
    assert md.from_npy(file).numblocks == (1, 1)
    assert np.array_equal(rows.compute(), x)
    assert check(md.gram(rows).compute(), np.ascontiguousarray(x.T), x)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(errors.TruncatedFileError, match=r"x\.npy.*Write the file anew"):
        md.gram(rows).compute()
    np.save(file, np.asfortranarray(x))
    with pytest.raises(errors.ArgumentError, match="column after column"):
        md.from_npy(file)


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """Provide two worker processes on this machine."""
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def test_a_killed_worker_changes_no_bit(client: Any, tmp_path: Path) -> None:
    file, mark = tmp_path / "x.npy", tmp_path / "killed"
    x = _numbers(4000, 9)
    np.save(file, x)
    rows = md.from_npy(file, rows=100)
    undisturbed = md.gram(rows).compute()
    assert check(undisturbed, np.ascontiguousarray(x.T), x)

    def deadly(block: Array, block_info: Any = None) -> Array:
        if block_info[0]["chunk-location"][0] == 25 and not mark.exists():
            mark.write_text(str(os.getpid()), encoding="utf-8")
            os.kill(os.getpid(), signal.SIGKILL)
        return block

    before = {info["pid"] for info in client.run(lambda: {"pid": os.getpid()}).values()}
    result = md.gram(rows.map_blocks(deadly, dtype=rows.dtype)).compute()
    assert int(mark.read_text(encoding="utf-8")) in before
    assert np.array_equal(result.view(np.int32), undisturbed.view(np.int32))


def test_the_example_finds_what_its_file_was_made_of(client: Any, tmp_path: Path) -> None:
    example: Any = import_module("rows_on_disk")
    file = tmp_path / "rows.npy"
    example.write(file, 50_000)
    rows, shift, gram = example.gram_of(file, client)
    covariance, means = example.moments(gram, rows, shift)
    x = np.load(file).astype(np.float64)
    assert np.allclose(means, x.mean(axis=0), atol=1e-5)
    assert np.allclose(covariance, np.cov(x.T), rtol=1e-4, atol=1e-4)
