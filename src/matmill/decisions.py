"""Measured decisions, kept on disk: one JSON file for each GPU, driver and set of versions.

A row is written once. Where two processes measure the same key, as the ranks of one job do, the row that was written
first stands for both.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

from matmill.errors import ArgumentError
from matmill.settings import cache_dir

#: What was decided for one key, and the times that it was decided by.
Row: TypeAlias = dict[str, Any]

_FORMAT = "matmill-decisions-1"


def default_path(gpu: str, versions: Mapping[str, str]) -> Path | None:
    """Return the file for a GPU and versions (of the driver, matmill, torch), or None if nothing is kept on disk.

    >>> default_path("NVIDIA H100 80GB HBM3", {"driver": "580.1", "torch": "2.11.0+cu130"}).name
    'NVIDIA-H100-80GB-HBM3_driver-580.1_torch-2.11.0-cu130.json'
    """
    folder = cache_dir()
    if folder is None:
        return None
    parts = [gpu, *(f"{name}-{version}" for name, version in versions.items())]
    return folder / "decisions" / ("_".join(re.sub(r"[^\w.]+", "-", part) for part in parts) + ".json")


class Decisions:
    """Rows by key, in memory and in one file; ``path`` None keeps them in memory alone.

    Threads and processes may share a file. A file that cannot be read counts as empty, and one that cannot be written
    is left: then the next process measures again.

    >>> decisions = Decisions(None)
    >>> decisions.put("mm 2x3x4", {"winner": "torch"})
    {'winner': 'torch'}
    >>> decisions.put("mm 2x3x4", {"winner": "matmill"})  # the first row stands
    {'winner': 'torch'}
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._rows: dict[str, Row] = {} if path is None else _read(path)

    def __len__(self) -> int:
        return len(self._rows)

    def items(self) -> list[tuple[str, Row]]:
        """Return all rows with their keys."""
        return list(self._rows.items())

    def get(self, key: str) -> Row | None:
        """Return the row of ``key``, or None."""
        return self._rows.get(key)

    def put(self, key: str, row: Row, *, anew: bool = False) -> Row:
        """Keep the row of ``key`` and return the row that stands: another process may have written one before.

        ``anew`` replaces a row that is there.
        """
        with self._lock:
            if key in self._rows and not anew:
                return self._rows[key]
            if self.path is not None:
                with suppress(OSError), _locked(self.path):
                    self._rows = self._rows | _read(self.path)
                    if anew or key not in self._rows:
                        self._rows[key] = row
                        _write(self.path, self._rows)
            if anew:
                self._rows[key] = row
            return self._rows.setdefault(key, row)

    def clear(self) -> int:
        """Forget all rows, on disk too, and return their number. Raises :class:`OSError` if the file stays."""
        with self._lock:
            count, self._rows = len(self._rows), {}
            if self.path is not None:
                self.path.unlink(missing_ok=True)
            return count

    def save(self, path: Path) -> None:
        """Write all rows to ``path``. Raises :class:`OSError` if it cannot be written."""
        _write(path, self._rows)

    @staticmethod
    def load(path: Path) -> Decisions:
        """Return the rows of a file that :meth:`save` wrote, unconnected to it.

        Raises :class:`~matmill.errors.ArgumentError` for a file of another kind, and :class:`OSError` for one that
        cannot be read.
        """
        decisions = Decisions(None)
        try:
            decisions._rows = _parsed(path.read_bytes())
        except ValueError as error:
            raise ArgumentError(
                argument="path",
                got=f"{path}, which holds no decisions ({error})",
                wanted="a file that save_decisions wrote",
                fix="Write one with matmill.torch.save_decisions(path).",
            ) from error
        return decisions


def _read(path: Path) -> dict[str, Row]:
    try:
        return _parsed(path.read_bytes())
    except (OSError, ValueError):
        return {}


def _parsed(data: bytes) -> dict[str, Row]:
    """Return the rows of a file's contents. Raises :class:`ValueError` for anything else."""
    content = json.loads(data)
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ValueError(f"no {_FORMAT} file")
    rows = content.get("rows")
    if not isinstance(rows, dict) or not all(isinstance(row, dict) for row in rows.values()):
        raise ValueError("rows that are not objects")
    return rows


def _write(path: Path, rows: Mapping[str, Row]) -> None:
    """Replace the file by a complete new one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix="partial-")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump({"format": _FORMAT, "rows": dict(rows)}, file, indent=1, sort_keys=True)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file's readers and writers in other processes."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
