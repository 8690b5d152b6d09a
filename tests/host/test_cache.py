"""The compile cache: whatever is in the folder, an entry comes back whole or not at all."""

from __future__ import annotations

import hashlib
import json
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from matmill.jit.cache import DiskCache

KEY, META, FIRST, SECOND = "key", {"registers": 32}, b"cubin\n\0" * 50, b"ptx"


@pytest.fixture
def store(tmp_path: Path) -> DiskCache:
    """Provide a store in a folder that is not there yet, with one entry."""
    result = DiskCache(tmp_path / "deep" / "cache")
    result.put(KEY, META, FIRST, SECOND)
    return result


def _sealed(body: bytes) -> bytes:
    """Return an entry whose checksum is right, whatever it holds."""
    return b"matmill-cache-1\n" + hashlib.sha256(body).digest() + body


def test_an_entry_comes_back(store: DiskCache) -> None:
    assert store.get(KEY) == (META, FIRST, SECOND)
    assert store.get("another") is None
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    assert [path.name for path in store.folder.iterdir()] == [store.path(KEY).name]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage" * 100,
        b"matmill-cache-1\n",
        _sealed(b""),
        _sealed(b"no JSON\nabc"),
        _sealed(b"[]\nabc"),
        _sealed(b'{"key": "key"}\nabc'),
        _sealed(b'{"key": "key", "meta": 3, "first": 1}\nabc'),
        _sealed(b'{"key": "key", "meta": {}, "first": "x"}\nabc'),
        _sealed(b'{"key": "key", "meta": [], "first": 1}\nabc'),
        _sealed(b'{"key": "key", "meta": {}, "first": Infinity}\nabc'),
        _sealed(b'{"key": "key", "meta": {}, "first": -1}\nabc'),
        _sealed(b'{"key": "key", "meta": {}, "first": 4}\nabc'),
        _sealed(b'{"key": "key", "meta": {}, "first": true}\nabc'),
        _sealed(b"[" * 100_000 + b"\nabc"),
        _sealed(b'{"key": "k\xff", "meta": {}, "first": 1}\nabc'),
        _sealed(json.dumps({"key": "of another source", "meta": META, "first": 1}).encode() + b"\nabc"),
    ],
)
def test_damage_is_a_miss_and_is_written_over(store: DiskCache, content: bytes) -> None:
    store.path(KEY).write_bytes(content)
    assert store.get(KEY) is None
    store.put(KEY, META, FIRST, SECOND)
    assert store.get(KEY) == (META, FIRST, SECOND)


def test_an_entry_cut_off_anywhere_is_a_miss(store: DiskCache) -> None:
    whole = store.path(KEY).read_bytes()
    for length in range(len(whole)):
        store.path(KEY).write_bytes(whole[:length])
        assert store.get(KEY) is None, length


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = DiskCache(tmp_path / "file")
    store.put(KEY, META, FIRST, SECOND)
    assert store.get(KEY) is None
    assert (store.size(), store.clear()) == ((0, 0), 0)


def test_many_writers_and_readers_at_once(tmp_path: Path) -> None:
    store = DiskCache(tmp_path / "cache")

    def use(_turn: int) -> bool:
        store.put(KEY, META, FIRST, SECOND)
        return store.get(KEY) == (META, FIRST, SECOND)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(64)))
    assert len(list(store.folder.iterdir())) == 1


def test_clearing_leaves_what_it_did_not_write(store: DiskCache) -> None:
    (store.folder / "thesis.tex").write_text("the user's own")
    (store.folder / "folder").mkdir()
    (store.folder / "partial-ab12cd").write_bytes(b"left by a process that was killed")
    count, size = store.size()
    assert count == 2
    assert size > len(FIRST)
    assert store.clear() == 2
    assert sorted(path.name for path in store.folder.iterdir()) == ["folder", "thesis.tex"]


def test_an_entry_that_cannot_be_published_leaves_nothing_behind(tmp_path: Path) -> None:
    store = DiskCache(tmp_path)
    store.path("key").mkdir()  # in the way of the file
    store.put("key", {}, b"first", b"second")
    assert list(tmp_path.iterdir()) == [store.path("key")]
