"""A small on-disk store of compiled kernels that survives other processes, truncated files and garbage.

An entry is one file, named by the SHA-256 of its key: a magic line, a checksum over the rest, a JSON header with the
lengths, then the payloads. It is written to a temporary name and renamed into place, so that readers see all of it or
nothing, and two processes that write the same entry leave one of two equal files. A file that fails these checks is a
miss and is overwritten.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MAGIC = b"matmill-cache-1\n"
_DIGEST = 32
_PARTIAL = "partial-"
_LOCK = "lock-"
_ENTRY = re.compile(r"[0-9a-f]{64}")
_OWN_NAME = re.compile(rf"{_ENTRY.pattern}|{_PARTIAL}\w+")
#: Names of entries by folder: those of the first look, those that this process has put, and those that it was told of.
_LISTED: dict[Path, set[str]] = {}

Entry = tuple[dict[str, Any], bytes, bytes]


@dataclass(frozen=True)
class DiskCache:
    """The store in one folder, which the first write creates with mode 0700."""

    folder: Path

    def path(self, key: str) -> Path:
        """Return the path of the entry of ``key``, whether or not it exists."""
        return self.folder / hashlib.sha256(key.encode()).hexdigest()

    def get(self, key: str) -> Entry | None:
        """Return the entry of ``key`` as (header, first payload, second payload), or None if there is no valid one."""
        try:
            data = self.path(key).read_bytes()
        except OSError:
            return None
        start = len(_MAGIC) + _DIGEST
        digest = hashlib.sha256(memoryview(data)[start:]).digest()  # a view: payloads are large, and copies take time
        if data[:start] != _MAGIC + digest:
            return None
        try:
            end = data.index(b"\n", start)
            header = json.loads(data[start:end])
            own, meta, cut = header["key"], header["meta"], header["first"]
        except (ValueError, TypeError, KeyError, RecursionError):  # a valid checksum, but not this class's format
            return None
        first = end + 1
        if own != key or not isinstance(meta, dict) or type(cut) is not int or not 0 <= cut <= len(data) - first:
            return None
        return meta, data[first : first + cut], data[first + cut :]

    def put(self, key: str, meta: dict[str, Any], first: bytes, second: bytes) -> None:
        """Store an entry. If the folder cannot be written, the next run compiles again; there is no error."""
        header = json.dumps({"key": key, "meta": meta, "first": len(first)}).encode()
        body = header + b"\n" + first + second
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.folder, prefix=_PARTIAL)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_MAGIC + hashlib.sha256(body).digest() + body)
                Path(name).replace(self.path(key))
                self.listed().add(self.path(key).name)
            except BaseException:  # a partial file must not fill the disk further
                Path(name).unlink(missing_ok=True)
                raise
        except OSError:
            return

    @contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """Run the body in one thread of one process at a time: whoever comes second finds what the first has put.

        The file of the lock goes with its last holder, and the lock of a process that is killed with the process. In a
        folder without locks, or one that cannot be written, the body runs at once.
        """
        path = self.folder / f"{_LOCK}{self.path(key).name}"
        handle = -1
        with suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = _lock(path)
        try:
            yield
        finally:
            if handle >= 0:
                with suppress(OSError):
                    path.unlink()  # while it is locked: see _lock
                # A forked child may have a copy of the handle, so that closing it would not suffice.
                fcntl.flock(handle, fcntl.LOCK_UN)
                os.close(handle)

    def listed(self) -> set[str]:
        """Return the names of the entries that this process knows of, which it may add to.

        The folder is read once: what other processes put or remove since then is not seen.
        """
        names = _LISTED.get(self.folder)
        if names is None:
            names = set()
            with suppress(OSError):
                names = {path.name for path in self.folder.iterdir() if _ENTRY.fullmatch(path.name)}
            _LISTED[self.folder] = names
        return names

    def writable(self) -> bool:
        """Tell whether entries can be put into the folder, which need not be there yet.

        A nameless file is made in it, or in the folder above that is there: permissions alone do not say, for instance,
        that a file system takes no files, or none of root's.
        """
        nearest = next(path for path in (self.folder.absolute(), *self.folder.absolute().parents) if path.exists())
        try:
            with tempfile.TemporaryFile(dir=nearest):
                return True
        except OSError:
            return False

    def stored_keys(self) -> list[str]:
        """Return the keys of the entries, by their headers alone: a payload may be damaged."""
        keys = []
        for path in self._entry_files():
            with suppress(OSError, ValueError, TypeError, KeyError, RecursionError), path.open("rb") as file:
                file.seek(len(_MAGIC) + _DIGEST)
                keys.append(str(json.loads(file.readline())["key"]))
        return keys

    def size(self) -> tuple[int, int]:
        """Return entries and bytes on disk."""
        sizes = []
        for path in self._entry_files():
            with suppress(OSError):  # another process is clearing the cache
                sizes.append(path.stat().st_size)
        return len(sizes), sum(sizes)

    def clear(self) -> int:
        """Remove all entries of this class and nothing else; return their number."""
        own = self._entry_files()
        _LISTED.pop(self.folder, None)
        for path in (*own, *self.folder.glob(_LOCK + 64 * "[0-9a-f]")):  # locks of processes that were killed
            path.unlink(missing_ok=True)
        return len(own)

    def _entry_files(self) -> list[Path]:
        """Return the store's files: the folder may have other files too."""
        try:
            return [path for path in self.folder.iterdir() if _OWN_NAME.fullmatch(path.name) and path.is_file()]
        except OSError:
            return []


def _lock(path: Path) -> int:
    """Return an open file at ``path`` that this thread alone has locked. Raises ``OSError``."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), path.stat()):
                    return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # the holder before has removed the file, and others may have locked another one since
