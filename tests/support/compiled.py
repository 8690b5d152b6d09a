"""What a test run compiles: kernels are kept between runs, and registers and spills stand in a golden file.

The golden file holds the resources of translation units by target and digest of the source, for one compiler and its
options. Of a unit that it knows no machine code is made: its PTX is compiled where somebody asks for it. Another
source, target or compiler is another key, so the file cannot say of one unit what holds for another.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import astuple
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from matmill.jit import compile as compiling
from matmill.jit import nvrtc
from matmill.jit.cache import DiskCache
from matmill.jit.compile import OPTIONS, Binary, Resources, compile_ptx
from matmill.jit.source import Source

FILE = Path(__file__).parents[1] / "golden" / "resources.json"
#: What the entry points of a translation unit need, by their names.
Needs: TypeAlias = dict[str, Resources]
#: What compiles a whole unit, machine code among it, or takes it from the cache.
whole_unit = compiling._remembered
_NOTHING = Resources(0, 0, 0, 0, 0)


class Golden:
    """Resources of translation units; ``folder`` is where the processes of a run note which ones they asked for."""

    def __init__(self, folder: Path) -> None:
        self._notes = folder / "asked"
        self._notes.mkdir(parents=True, exist_ok=True)
        self._units = _read()
        self._asked: set[str] = set()

    def needs(self, source: Source, target: str) -> Needs:
        """Return what the unit's entry points need, from the file or else from the compiler."""
        unit = f"{target} {source.digest}"
        if unit not in self._asked:
            if unit not in self._units:
                self._units[unit] = whole_unit(source, target).resources
            self._asked.add(unit)
            numbers = {entry: astuple(one) for entry, one in self._units[unit].items()}
            with (self._notes / f"{os.getpid()}.jsonl").open("a") as notes:
                notes.write(json.dumps([unit, numbers]) + "\n")
        return self._units[unit]

    def asked(self) -> dict[str, dict[str, list[int]]]:
        """Return the units that any process of the run asked for."""
        lines = [line for notes in self._notes.glob("*.jsonl") for line in notes.read_text().splitlines()]
        return dict(sorted(json.loads(line) for line in lines))

    def missing(self) -> int:
        """Say how many units were asked for that the file does not know."""
        return len(self.asked().keys() - _read().keys())

    def write(self) -> int:
        """Write the file anew with what was asked for and nothing else; say how many units that is."""
        asked = self.asked()
        head = "\n".join(f"{json.dumps(key)}: {json.dumps(value)}," for key, value in _compiler().items())
        units = ",\n".join(f"{json.dumps(unit)}: {json.dumps(needs)}" for unit, needs in asked.items())
        FILE.write_text(f'{{\n{head}\n"units": {{\n{units}\n}}\n}}\n')
        return len(asked)


def _compiler() -> dict[str, Any]:
    return {"compiler": nvrtc.compiler(), "options": list(OPTIONS)}


def _read() -> dict[str, Needs]:
    """Return the units of the golden file, or none where another compiler wrote it."""
    held = json.loads(FILE.read_text()) if FILE.is_file() else {}
    if any(held.get(key) != value for key, value in _compiler().items()):
        return {}
    return {unit: {entry: Resources(*needs) for entry, needs in units.items()} for unit, units in held["units"].items()}


_started: list[Golden] = []


def prune(kernels: Path, most: int) -> None:
    """Delete the entries of a cache that were not read for longest, until it has at most ``most`` bytes."""
    files = []
    for path in DiskCache(kernels)._entry_files():
        with suppress(OSError):  # another run deletes it at this moment
            result = path.stat()
            files.append((max(result.st_atime, result.st_mtime), result.st_size, path))
    files.sort(reverse=True)
    total = 0
    for _, size, path in files:
        total += size
        if total > most:
            path.unlink(missing_ok=True)


def start(folder: Path, kernels: Path, *, machine_code: bool) -> Golden:
    """Keep this process's notes in ``folder`` and its kernels in ``kernels``; only ``machine_code`` makes binaries.

    A kernel's key is its source, its options and the compiler: what an earlier run has left is what this one would get.
    """
    golden = Golden(folder)
    _started[:] = [golden]
    os.environ["MATMILL_CACHE_DIR"] = str(kernels)
    os.environ.pop("MATMILL_CACHE", None)
    os.environ["MATMILL_COMPILE"] = "wait"  # every product is computed by the kernel that is best for it
    if not machine_code:
        compiling._remembered = lru_cache(maxsize=512)(_without_code)
    return golden


def _without_code(source: Source, target: str) -> compiling._CompiledUnit:
    needs = _started[0].needs(source, target)  # first: where it compiles the whole unit, that leaves the PTX too
    return compiling._CompiledUnit(b"", compile_ptx(source, target), needs)


def headings_alone(source: Source, target: str) -> compiling._CompiledUnit:
    """Return a unit for a GPU that runs nothing.

    It has the headings of its entry points in the place of PTX, and what they need.
    """
    needs = _started[0].needs(source, target)
    return compiling._CompiledUnit(b"", "".join(f".visible .entry {name}()\n" for name in needs), needs)


def resources(source: Source, target: str) -> Resources:
    """Return what the entry point needs; where the golden file knows it, nothing is compiled."""
    return _started[0].needs(source, target).get(source.entry, _NOTHING)


def in_ptx_alone(source: Source, target: str) -> Binary:
    """Return what an emulated GPU runs in the place of a binary.

    It has PTX, no machine code, and nothing that the kernel needs.
    """
    return Binary(source.kernel, source.entry, target, b"", compile_ptx(source, target), _NOTHING)
