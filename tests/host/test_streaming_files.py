"""Streaming from files: read or copied, whole or in part, in little memory, and files that change meanwhile."""

from __future__ import annotations

import errno
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from matmill.dtypes import ALL, F32, DType
from matmill.errors import TruncatedFileError
from matmill.streaming import sources
from support.lazy_device import LazyDevice
from support.streaming_trial import MIB, exact, numbers, stored, streamed

DESCRIPTORS = Path("/proc/self/fd")


@pytest.mark.parametrize("dtype", ALL.values(), ids=ALL)
@pytest.mark.parametrize("run", [1, 1 << 30], ids=["read", "copied"])
@pytest.mark.parametrize("how", ["file rows", "file columns"])
def test_files_are_read_or_copied(
    how: str, run: int, dtype: DType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_RUN", run)
    monkeypatch.setattr(sources, "_PIECE", 1000)
    preadv = mock.Mock(wraps=os.preadv)
    monkeypatch.setattr(os, "preadv", preadv)
    files = len(list(DESCRIPTORS.iterdir()))
    e, f = stored(numbers((5, 2000), dtype), how, tmp_path), stored(numbers((2000, 3), dtype, 1), how, tmp_path)
    result = streamed(e, f)
    assert np.array_equal(result, exact(e, f).astype(dtype.numpy))
    # One of the two is in one run per chunk, whatever a run must have.
    assert preadv.called
    del e, f
    assert len(list(DESCRIPTORS.iterdir())) == files


@pytest.mark.parametrize("how", ["sliced", "strided", "reversed", "broadcast", "as_strided"])
def test_parts_of_files(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_RUN", 8)
    whole = stored(numbers((20, 3000), F32), "file rows", tmp_path)
    parts = {
        "sliced": whole[3:8, 100:2900],
        "strided": whole[::5, ::2],
        "reversed": whole[:4, ::-1],
        "broadcast": np.broadcast_to(whole[2], (4, 3000)),
        "as_strided": np.lib.stride_tricks.as_strided(whole, (4, 2000), (4, 4)),
    }
    e = parts[how]
    f = numbers((e.shape[1], 2), F32, 1)
    assert sources._MappedFile.behind(e, "e") is not None
    assert np.array_equal(streamed(e, f), exact(e, f))


def test_memory_on_the_host_is_bounded(tmp_path: Path) -> None:
    shape, budget = (4, 2 * MIB), 3 * MIB
    path = tmp_path / "long.npy"
    e = np.lib.format.open_memmap(path, "w+", np.float32, shape)
    e[:] = 1
    device = LazyDevice()
    tracemalloc.start()
    result = streamed(e, e.T, device, budget=budget)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.array_equal(result, np.full((4, 4), shape[1]))
    assert device.most_pinned <= budget + 2 * result.nbytes
    # The stand-in keeps the device's buffers on the host too, and its product makes copies of one chunk.
    assert most < 3 * budget + MIB < e.nbytes


# Files that change


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Provide E (4, 20000) of float32, row after row."""
    path = tmp_path / "e.npy"
    np.save(path, numbers((4, 20_000), F32))
    return path


def _half(path: Path) -> Callable[[int, int], None]:
    def cut(_done: int, _total: int) -> None:
        os.truncate(path, path.stat().st_size // 2)

    return cut


@pytest.mark.parametrize("how", ["read", "copied", "unknown"])
def test_a_file_cut_short_is_an_error_and_not_the_end(how: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_RUN", 1 if how == "read" else 1 << 30)
    if how == "unknown":
        monkeypatch.setattr(sources, "_MAPS", file.with_name("no such file"))
    e = np.load(file, mmap_mode="r")
    whole = file.stat().st_size
    device = LazyDevice()
    with pytest.raises(TruncatedFileError) as raised:
        streamed(e, numbers((20_000, 2), F32), device, progress=_half(file))
    text = str(raised.value)
    assert text.startswith(f"e: got {file} with {whole // 2} bytes; wanted the ")
    assert whole // 2 < int(text.partition("wanted the ")[2].partition(" ")[0]) <= whole
    assert isinstance(raised.value, OSError)
    assert device.rests()


def test_a_file_cut_short_before_it_is_opened(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_RUN", 1)
    e = np.load(file, mmap_mode="r")
    os.truncate(file, 200)
    with pytest.raises(TruncatedFileError, match="with 200 bytes"):
        streamed(e, numbers((20_000, 2), F32))


def test_a_file_replaced_by_another_is_still_the_one_that_was_mapped(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_RUN", 1)
    e, f = np.load(file, mmap_mode="r"), numbers((20_000, 2), F32)
    wanted = exact(np.array(e), f)
    for other in (np.zeros((4, 20_000), np.float32), np.zeros(3, np.float32)):
        np.save(file.with_name("new.npy"), other)
        file.with_name("new.npy").replace(file)
        assert np.array_equal(streamed(e, f), wanted)
    file.unlink()
    assert np.array_equal(streamed(e, f), wanted)


def test_a_file_replaced_while_it_is_being_opened(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_RUN", 1)
    e, f = np.load(file, mmap_mode="r"), numbers((20_000, 2), F32)
    wanted = exact(np.array(e), f)
    np.save(file.with_name("new.npy"), np.zeros_like(e))
    real = os.open

    def late(path: str, flags: int) -> int:
        file.with_name("new.npy").replace(file)
        return real(path, flags)

    monkeypatch.setattr(os, "open", late)
    assert np.array_equal(streamed(e, f), wanted)
    assert not file.with_name("new.npy").exists()


@pytest.mark.parametrize("mode", ["c", "r+"])
def test_changes_that_are_not_in_the_file_yet_count(mode: Any, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_RUN", 1)
    e, f = np.load(file, mmap_mode=mode), numbers((20_000, 2), F32)
    e[:, ::7] += 1
    assert np.array_equal(streamed(e, f), exact(np.array(e), f))


def test_errors_of_the_disk_name_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_descriptor: int, _into: object, _position: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(sources, "_RUN", 1)
    monkeypatch.setattr(os, "preadv", fails)
    with pytest.raises(OSError, match="Input/output error") as raised:
        streamed(np.load(file, mmap_mode="r"), numbers((20_000, 2), F32))
    assert raised.value.filename == str(file)
