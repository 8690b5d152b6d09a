"""The files of ``#include``: a user's file, one of CUDA's headers, or a host header, which is omitted."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from matmill.cuda_source.declarations import File, declarations_of, device_macros
from matmill.cuda_source.macros import Macro, macros_of
from matmill.cuda_source.stubs import HOST_HEADERS, INSTEAD
from matmill.cuda_source.tokens import tokens, without_dead_branches

_INCLUDE = re.compile(r'(#\s*include\s*)(?:"([^"]+)"|<([^>]+)>)')
# The headers of a CUDA toolkit that is not a wheel.
_SYSTEM = Path("/usr/local/cuda/include")


@cache
def toolkit() -> tuple[Path, ...]:
    """Return the folders of CUDA's headers: wheels' (nvidia-cuda-runtime, -cccl, -crt, -curand), else a toolkit's."""
    of_packages = [folder for entry in map(Path, sys.path) for folder in sorted(entry.glob("nvidia/*/include"))]
    folders = of_packages or [_SYSTEM]
    return tuple(each for folder in folders for each in (folder, folder / "cccl") if each.is_dir())


@cache
def toolkit_name() -> str:
    """Return the version of CUDA's headers for cache keys: the wheels' names and versions, or the folders."""
    wheels = [w.name for entry in map(Path, sys.path) for w in entry.glob("nvidia_c*.dist-info")]
    return " ".join(sorted(wheels)) or " ".join(map(str, toolkit()))


@dataclass
class Gathered:
    """A file and the user's own headers that it includes.

    ``files`` are (name for the compiler, path or None, contents), the main file first. ``missing`` are includes that
    were not found, ``host`` those of host headers, ``stubs`` replacements of some of them, and ``originals`` the files'
    unchanged texts.
    """

    files: list[tuple[str, Path | None, File]] = field(default_factory=list)
    missing: dict[str, None] = field(default_factory=dict)
    host: dict[str, None] = field(default_factory=dict)
    stubs: dict[str, str] = field(default_factory=dict)
    originals: dict[str, str] = field(default_factory=dict)


def gather(text: str, name: str, folder: Path | None, include: Sequence[Path]) -> Gathered:
    """Read a file and all of the user's headers, and replace each ``#include``."""
    gatherer = _Gatherer(include)
    read = [(name, None, gatherer.replaced(name, text, folder)), *gatherer.headers()]
    contents = [tokens(source) for _, _, source in read]
    macros = {macro for each in contents for macro in device_macros(each)}
    defined: dict[str, Macro] = {}
    for each in contents:
        defined |= macros_of(without_dead_branches(each))
    files = [(spelled, path, declarations_of(source, macros, defined)) for spelled, path, source in read]
    gatherer.gathered.files = files
    return gatherer.gathered


class _Gatherer:
    """The headers so far: ``known`` are their names for the compiler, ``left`` those that were not read yet."""

    def __init__(self, include: Sequence[Path]) -> None:
        self.include = include
        self.gathered = Gathered()
        self.known: dict[Path, str] = {}
        self.left: list[Path] = []
        self.stubs = self.gathered.stubs

    def headers(self) -> Iterator[tuple[str, Path | None, str]]:
        """Yield all of the user's headers with their own includes replaced."""
        while self.left:
            path = self.left.pop(0)
            source = path.read_text(encoding="utf-8", errors="replace")
            yield self.known[path], path, self.replaced(self.known[path], source, path.parent)

    def replaced(self, name: str, source: str, here: Path | None) -> str:
        """Return the text of a file with includes for the compiler."""
        self.gathered.originals[name] = source
        parts, at = [], 0
        # Only in directives: a string or a comment may contain one.
        for token in tokens(source):
            match = _INCLUDE.match(token.text) if token.kind == "directive" else None
            if match is not None:
                parts += [source[at : token.start], self._directive(match, here)]
                at = token.end
        return "".join([*parts, source[at:]])

    def _directive(self, match: re.Match[str], here: Path | None) -> str:
        spelled, headers = match[2] or match[3], self.gathered
        name = Path(spelled).name
        # A path decides, not its last part: <cuda/atomic> is CUDA's, "kernels/memory.h" the user's. Helpers of
        # CUDA's samples are host code wherever they are, and Thrust launches its own kernels.
        host = name.startswith("helper_") and name in HOST_HEADERS
        host = host or spelled.startswith("thrust/") or (spelled in HOST_HEADERS and match[3] is not None)
        path = None if host else self._of_user(spelled, here if match[2] is not None else None)
        if path is not None:
            if path not in self.known:
                self.known[path] = f"{len(self.known) + 1}/{path.name}"
                self.left.append(path)
            return f'#include "{self.known[path]}"'
        host = host or spelled in HOST_HEADERS
        if not host and any((each / spelled).is_file() for each in toolkit()):
            return match[0]
        host = host or name in HOST_HEADERS
        (headers.host if host else headers.missing)[spelled] = None
        return self._instead(name) if host else ""

    def _instead(self, name: str) -> str:
        """Return a replacement for a host header, in one line, so that line numbers do not change."""
        text = INSTEAD.get(name, "")
        included = _INCLUDE.findall(text)
        if not text or not all(any((each / angle).is_file() for each in toolkit()) for _, _, angle in included):
            return ""
        virtual = f"matmill/{name}"
        self.stubs[virtual] = text
        return f'#include "{virtual}"'

    def _of_user(self, spelled: str, here: Path | None) -> Path | None:
        for base in [*([here] if here is not None else []), *self.include]:
            if (base / spelled).is_file():
                return (base / spelled).resolve()
        return None
