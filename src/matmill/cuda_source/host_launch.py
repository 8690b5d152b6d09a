"""A launch as the host code of a file makes it, for a command that runs the kernel without it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from matmill.cuda_source.extents import evaluate

_COMMA = re.compile(r",(?![^()<>]*[)>])")


@dataclass(frozen=True)
class HostLaunch:
    """Extents of grid and block, bytes of shared memory, the argument's texts, and the bytes of arrays by argument."""

    grid: tuple[int, ...] = (1,)
    block: tuple[int, ...] = (256,)
    shared: int = 0
    arguments: tuple[str, ...] = ()
    sizes: Mapping[str, int] | None = None


def host_launch(texts: Iterable[str], kernel: str, names: Mapping[str, str]) -> HostLaunch:
    """Return the first launch of a kernel whose numbers ``names``, the constants by their texts, determine.

    >>> text = "int n = 100; cudaMalloc(&d_x, n * sizeof(float)); dim3 b(16, 2); k<<<(n + 31) / 32, b>>>(d_x, n);"
    >>> host_launch([text], "k", {"n": "100"})
    HostLaunch(grid=(4,), block=(16, 2), shared=0, arguments=('d_x', 'n'), sizes={'d_x': 400})
    """
    for text in texts:
        sizes = {}
        for name, size in re.findall(r"cudaMalloc\w*\s*\(\s*(?:\([^()]*\)\s*)?&\s*(\w+)\s*,([^;]*)\)\s*;", text):
            sizes[name] = evaluate(
                size.rstrip(") \n") + ")" * (size.count("(") > size.rstrip(") \n").count(")")), names
            )
        for config, given in re.findall(rf"\b{kernel}\s*(?:<[^;]*?>)?\s*<<<(.*?)>>>\s*\((.*?)\)\s*;", text, re.DOTALL):
            parts = [part.strip() for part in _COMMA.split(config)]
            grid, block = (_extents(part, text, names) for part in [*parts, "", ""][:2])
            if grid and block:
                shared = evaluate(parts[2], names) if len(parts) > 2 else 0
                arguments = tuple(each.strip() for each in _COMMA.split(given))
                return HostLaunch(grid, block, shared or 0, arguments, {k: v for k, v in sizes.items() if v})
    return HostLaunch()


def _extents(text: str, source: str, names: Mapping[str, str]) -> tuple[int, ...]:
    """Return the extents of a number, ``dim3(…)`` or the name of a dim3; nothing if they are not known."""
    named = re.search(
        rf"\bdim3\s+(?:\w+\s*\([^;]*?\)\s*,\s*)*{re.escape(text)}\s*=?\s*(?:dim3)?\s*([({{][^;]*);", source
    )
    inner = named[1] if named else text.removeprefix("dim3").strip()
    if named or inner != text:
        depths = [inner[: n + 1].count("(") - inner[: n + 1].count(")") for n in range(len(inner))]
        inner = inner[1 : depths.index(0) if 0 in depths[:-1] and inner[0] == "(" else -1]
    values = [evaluate(part, names) for part in _COMMA.split(inner)]
    return tuple(value for value in values if value) if all(values) else ()
