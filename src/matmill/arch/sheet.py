"""A user-defined GPU, described in a JSON file that is passed in place of a name: ``--arch mine.json``.

The file is one object with the fields of :class:`~matmill.arch.facts.Arch`: rates in FLOP/s and bytes/s, sizes in
bytes, ``capability`` as two numbers, ``matrix_flops`` by type. ``title`` and those with defaults may be left out.

    {"name": "mine", "capability": [8, 9], "sms": 46, "boost_hz": 2.475e9, "fp32_flops": 29.1e12,
     "fp64_flops": 0.455e12, "dram_bytes_per_s": 504e9, "l2_bytes": 37748736, "shared_per_sm": 102400,
     "shared_per_block": 101376, "threads_per_sm": 1536, "blocks_per_sm": 24,
     "matrix_flops": {"float16": 116.5e12, "bfloat16": 116.5e12}, "source": "its data sheet"}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from matmill.arch.facts import Arch
from matmill.errors import ArgumentError

#: Larger figures are refused, so that results computed from them stay finite.
_MOST_FIGURE = 1e30
_WORDS = ("name", "title", "source")
_KINDS = ("float16", "bfloat16", "tf32", "float64")


def read_sheet(path: Path, argument: str) -> Arch:
    """Return the arch that a file describes. Raises :class:`~matmill.errors.ArgumentError` for any other file."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _wrong(argument, path, str(error.strerror)) from error
    except (ValueError, RecursionError) as error:
        raise _wrong(argument, path, f"no JSON ({error})") from error
    why = _why_not(document)
    if why:
        raise _wrong(argument, path, why)
    fields = {"title": document["name"], **document, "capability": tuple(document["capability"])}
    return Arch(**fields)


def _wrong(argument: str, path: Path, got: str) -> ArgumentError:
    needed = [one.name for one in fields(Arch) if one.default is MISSING and one.default_factory is MISSING]
    return ArgumentError(
        argument=argument,
        got=f"{str(path)!r}: {got}",
        wanted=f"a JSON object with {', '.join(name for name in needed if name != 'title')}",
        fix="docs/cost-models.md has an example.",
    )


def _why_not(document: Any) -> str | None:
    """Return why a JSON document does not describe an arch, or None."""
    if not isinstance(document, dict):
        return "no object"
    known = {one.name: one for one in fields(Arch)}
    unknown = sorted(document.keys() - known.keys())
    if unknown:
        return f"unknown field {unknown[0]!r}"
    for name, one in known.items():
        optional = name == "title" or one.default is not MISSING or one.default_factory is not MISSING
        if name in document:
            if not _fits(name, str(one.type), document[name]):
                return f"{name} {document[name]!r}"
        elif not optional:
            return f"no {name}"
    return None


def _fits(name: str, kind: str, value: Any) -> bool:
    """Tell whether a value is valid for that field."""
    if name in _WORDS:
        # The name becomes a part of file names, such as an arch file's.
        return isinstance(value, str) and re.fullmatch(r"[\w.-]+" if name == "name" else r".*\S.*", value) is not None
    if name == "capability":
        return isinstance(value, list) and len(value) == 2 and all(_is_number(one, whole=True) for one in value)
    if name == "matrix_flops":
        return isinstance(value, Mapping) and all(k in _KINDS and _is_number(v) and v > 0 for k, v in value.items())
    return _is_number(value, whole=kind == "int") and (value > 0 or name == "shared_reserved")


def _is_number(value: Any, *, whole: bool = False) -> bool:
    kinds = (int,) if whole else (int, float)
    return isinstance(value, kinds) and not isinstance(value, bool) and 0 <= value < _MOST_FIGURE
