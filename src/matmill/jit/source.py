"""A kernel and its constants to one self-contained translation unit, and its digest."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from matmill.config import Config
from matmill.dtypes import DType
from matmill.kernel import Program, name_of
from matmill.parameters import Parameters

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """CUDA C++ ready to compile: ``text`` is the generated file, ``headers`` all its includes, as (name, text).

    ``kernel`` is the name used in messages, ``entry`` the ``extern "C"`` function. Sources that differ only in the
    entry are equal: one translation unit has all entries.
    """

    kernel: str
    entry: str = field(compare=False)
    text: str
    headers: tuple[tuple[str, str], ...] = ()

    @cached_property
    def digest(self) -> str:
        """SHA-256 over text and headers, in hexadecimal."""
        parts = [self.text, *(part for header in self.headers for part in header)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def generate(program: Program, dtype: DType) -> Source:
    """Return the translation unit of one entry point: constants, scalar type, parameters, then the kernel's file.

    The kernel's file is included, not pasted, so that messages have its line numbers.
    """
    config = Config(program.config.constants)  # programs that differ in the rest share a unit
    return _unit(program.package, program.file, name_of(program), program.entry, config, program.parameters, dtype)


@lru_cache(maxsize=4096)
def _unit(  # noqa: PLR0917 — a program's parts, which are what a unit depends on
    package: str, file: str, kernel: str, entry: str, config: Config, parameters: Parameters | None, dtype: DType
) -> Source:
    name = f"{package.removeprefix('matmill.').replace('.', '/')}/{file}"
    types = (*filter(None, (dtype.header,)), *(parameters.headers if parameters else ()))
    define = "".join(f'#include "{header}"\n' for header in types)
    args = f"{parameters.cxx(dtype)}\n" if parameters else ""
    text = f'{config.cxx()}\n{define}using Scalar = {dtype.cxx};\n{args}#include "{name}"\n'
    return Source(kernel, entry, text, _headers(package, file, name, define))


@cache
def _headers(package: str, file: str, name: str, define: str) -> tuple[tuple[str, str], ...]:
    """Return a unit's headers: the kernel's file, called ``name``, and all that it and ``define`` include."""
    body = read_source(package, file)
    return tuple(sorted([(name, body), *included(define + body)]))


def included(text: str) -> tuple[tuple[str, str], ...]:
    """Return all files that ``text`` includes, transitively, as (name, text) in the order of names."""
    headers: dict[str, str] = {}
    _collect(text, headers)
    return tuple(sorted(headers.items()))


def _collect(text: str, headers: dict[str, str]) -> None:
    """Add all files that ``text`` includes, transitively, to ``headers``."""
    for name in _INCLUDE.findall(text):
        if name not in headers:
            headers[name] = read_source(*_package_of(name))
            _collect(headers[name], headers)


def _package_of(name: str) -> tuple[str, str]:
    """Return the package and path of an included file: "matmill/…" is in ``include/``, all else in other packages."""
    return ("matmill.include", name) if name.startswith("matmill/") else ("matmill", name)


@cache
def read_source(package: str, path: str) -> str:
    """Return the text of a source file in a package or in one of its subfolders."""
    # From the root package down: `include` is a plain folder of headers, not a Python package.
    top, *folders = package.split(".")
    entry: Traversable = files(top)
    for part in (*folders, *path.split("/")):
        entry = entry / part
    return entry.read_text(encoding="utf-8")
