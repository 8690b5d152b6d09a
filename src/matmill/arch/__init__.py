"""Facts about GPUs: the peaks that percentages refer to and the limits that launches must respect.

Figures are the vendors' data-sheet values at boost clock (arithmetic counts a fused multiply-add as two operations),
limits are those of the CUDA programming guide's table of compute capabilities. The three oldest GPUs are those of the
slides; NVRTC no longer compiles for them, so they serve for comparing percentages only.

``matmill probe`` measures a GPU and writes an arch file, one JSON document per model, which :func:`measured` reads. A
user's own file, in the cache folder, takes precedence over the shipped one.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, fields, replace
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from matmill.arch.facts import Arch, Measured
from matmill.arch.sheet import read_sheet
from matmill.errors import ArgumentError, unknown_name
from matmill.settings import cache_dir

_KIB = 1024
_MIB = 1024 * 1024

_T4 = Arch(
    name="t4",
    title="Tesla T4",
    capability=(7, 5),
    sms=40,
    boost_hz=1.59e9,
    fp32_flops=8.1e12,
    fp64_flops=0.254e12,
    dram_bytes_per_s=320e9,
    l2_bytes=4 * _MIB,
    shared_per_sm=64 * _KIB,
    shared_per_block=64 * _KIB,
    threads_per_sm=1024,
    blocks_per_sm=16,
    shared_reserved=0,
    matrix_flops={"float16": 65e12},
    source="NVIDIA T4 data sheet, 2019",
)
_A100 = Arch(
    name="a100",
    title="A100 SXM4 40 GB",
    capability=(8, 0),
    sms=108,
    boost_hz=1.41e9,
    fp32_flops=19.5e12,
    fp64_flops=9.7e12,
    dram_bytes_per_s=1555e9,
    l2_bytes=40 * _MIB,
    shared_per_sm=164 * _KIB,
    shared_per_block=163 * _KIB,
    threads_per_sm=2048,
    blocks_per_sm=32,
    matrix_flops={"float16": 312e12, "bfloat16": 312e12, "tf32": 156e12, "float64": 19.5e12},
    source="NVIDIA A100 data sheet, 2020",
)
_RTX4090 = replace(
    _A100,
    name="rtx4090",
    title="GeForce RTX 4090",
    capability=(8, 9),
    sms=128,
    boost_hz=2.52e9,
    fp32_flops=82.6e12,
    fp64_flops=1.29e12,
    dram_bytes_per_s=1008e9,
    l2_bytes=72 * _MIB,
    shared_per_sm=100 * _KIB,
    shared_per_block=99 * _KIB,
    threads_per_sm=1536,
    blocks_per_sm=24,
    matrix_flops={"float16": 165.2e12, "bfloat16": 165.2e12, "tf32": 82.6e12},
    source="NVIDIA Ada architecture white paper, 2022",
)
_H100 = Arch(
    name="h100",
    title="H100 SXM5 80 GB",
    capability=(9, 0),
    sms=132,
    boost_hz=1.98e9,
    fp32_flops=66.9e12,
    fp64_flops=33.5e12,
    dram_bytes_per_s=3350e9,
    l2_bytes=50 * _MIB,
    shared_per_sm=228 * _KIB,
    shared_per_block=227 * _KIB,
    threads_per_sm=2048,
    blocks_per_sm=32,
    matrix_flops={"float16": 989.4e12, "bfloat16": 989.4e12, "tf32": 494.7e12, "float64": 66.9e12},
    source="NVIDIA H100 architecture white paper, 2022",
)

ARCHES: dict[str, Arch] = {
    a.name: a
    for a in (
        _T4,
        replace(
            _T4,
            name="rtx2080ti",
            title="GeForce RTX 2080 Ti",
            sms=68,
            boost_hz=1.545e9,
            fp32_flops=13.45e12,
            fp64_flops=0.42e12,
            dram_bytes_per_s=616e9,
            l2_bytes=5632 * _KIB,
            matrix_flops={"float16": 53.8e12},
            source="NVIDIA Turing architecture white paper, 2018",
        ),
        _RTX4090,
        replace(
            _RTX4090,
            name="rtx5090",
            title="GeForce RTX 5090",
            capability=(12, 0),
            sms=170,
            boost_hz=2.407e9,
            fp32_flops=104.8e12,
            fp64_flops=1.637e12,
            dram_bytes_per_s=1792e9,
            l2_bytes=96 * _MIB,
            matrix_flops={"float16": 209.5e12, "bfloat16": 209.5e12, "tf32": 104.8e12},
            source="NVIDIA RTX Blackwell architecture white paper, 2025",
        ),
        replace(
            _RTX4090,
            name="l40s",
            title="L40S 48 GB",
            sms=142,
            boost_hz=2.52e9,
            fp32_flops=91.6e12,
            fp64_flops=1.43e12,
            dram_bytes_per_s=864e9,
            l2_bytes=96 * _MIB,
            matrix_flops={"float16": 362.05e12, "bfloat16": 362.05e12, "tf32": 183e12},
            source="NVIDIA L40S data sheet, 2023; L2: Ada architecture white paper, the whole AD102",
        ),
        replace(
            _RTX4090,
            name="l4",
            title="L4 24 GB",
            sms=58,
            boost_hz=2.04e9,
            fp32_flops=30.3e12,
            fp64_flops=0.473e12,
            dram_bytes_per_s=300e9,
            l2_bytes=48 * _MIB,
            matrix_flops={"float16": 121e12, "bfloat16": 121e12, "tf32": 60e12},
            source="NVIDIA L4 data sheet, 2023, whose rates with sparsity are halved",
        ),
        replace(
            _RTX4090,
            name="a10",
            title="A10 24 GB",
            capability=(8, 6),
            sms=72,
            boost_hz=1.695e9,
            fp32_flops=31.2e12,
            fp64_flops=0.976e12,
            dram_bytes_per_s=600e9,
            l2_bytes=6 * _MIB,
            blocks_per_sm=16,
            matrix_flops={"float16": 125e12, "bfloat16": 125e12, "tf32": 62.5e12},
            source="NVIDIA A10 data sheet, 2021; L2: GA102 architecture white paper",
        ),
        _A100,
        _H100,
        replace(
            _H100,
            name="h200",
            title="H200 SXM 141 GB",
            dram_bytes_per_s=4800e9,
            l2_bytes=60 * _MIB,
            source="NVIDIA H200 data sheet, 2024; limits and rates those of the H100",
        ),
        replace(
            _H100,
            name="b200",
            title="B200 SXM 180 GB",
            capability=(10, 0),
            sms=148,
            boost_hz=1.98e9,
            fp32_flops=75e12,
            fp64_flops=37e12,
            dram_bytes_per_s=8000e9,
            l2_bytes=126 * _MIB,
            matrix_flops={"float16": 2250e12, "bfloat16": 2250e12, "tf32": 1125e12, "float64": 37e12},
            source="NVIDIA HGX B200 data sheet, 2025, an eighth of its rates; SMs, clock and L2 as reviews report them",
        ),
        Arch(
            name="c2070",
            title="Tesla C2070",
            capability=(2, 0),
            sms=14,
            boost_hz=1.15e9,
            fp32_flops=1.030e12,
            fp64_flops=0.515e12,
            dram_bytes_per_s=144e9,
            l2_bytes=768 * _KIB,
            shared_per_sm=48 * _KIB,
            shared_per_block=48 * _KIB,
            threads_per_sm=1536,
            blocks_per_sm=8,
            registers_per_sm=32768,
            shared_reserved=0,
            source="The slides and the vendor's data sheet",
        ),
        Arch(
            name="k40",
            title="Tesla K40",
            capability=(3, 5),
            sms=15,
            boost_hz=0.745e9,
            fp32_flops=4.291e12,
            fp64_flops=1.43e12,
            dram_bytes_per_s=288e9,
            l2_bytes=1536 * _KIB,
            shared_per_sm=48 * _KIB,
            shared_per_block=48 * _KIB,
            threads_per_sm=2048,
            blocks_per_sm=16,
            shared_reserved=0,
            source="The slides and the vendor's data sheet",
        ),
        Arch(
            name="titan-x",
            title="GeForce GTX Titan X",
            capability=(5, 2),
            sms=24,
            boost_hz=1.0e9,
            fp32_flops=6.144e12,
            fp64_flops=0.192e12,
            dram_bytes_per_s=336.5e9,
            l2_bytes=3 * _MIB,
            shared_per_sm=96 * _KIB,
            shared_per_block=48 * _KIB,
            threads_per_sm=2048,
            blocks_per_sm=32,
            shared_reserved=0,
            source="The slides and the vendor's data sheet",
        ),
    )
}

__all__ = ["ARCHES", "DEFAULT", "Arch", "Measured", "get", "load", "measured", "save", "user_file"]

#: The arch of percentages if there is no GPU and no name.
DEFAULT = "h200"


def get(name: str, argument: str = "arch") -> Arch:
    """Return the arch of that name, or the one described in a file ending in ``.json`` (:mod:`matmill.arch.sheet`).

    Raises :class:`~matmill.errors.UnknownNameError` with the nearest name.

    >>> get("t4").target
    'sm_75'
    """
    if name.endswith(".json"):
        return read_sheet(Path(name), argument)
    entry = ARCHES.get(name.lower())
    if entry is None:
        raise unknown_name(argument, name, ARCHES)
    return entry


def measured(arch: Arch) -> Measured | None:
    """Return the measurements of ``arch``: this user's, else the shipped ones, else None.

    The disk is read once per model. Raises :class:`~matmill.errors.ArgumentError` for a file that :func:`save` did not
    write.
    """
    return _stored(arch.name, cache_dir())


def user_file(arch: Arch) -> Path | None:
    """Return the user's arch file, which :func:`measured` reads first, or None if the cache is switched off."""
    folder = cache_dir()
    return None if folder is None else folder / _FOLDER / f"{arch.name}.json"


def save(path: Path, arch: Arch, device: Measured) -> None:
    """Write the arch file of ``arch`` completely, or not at all if that fails with an OSError."""
    document = {"format": _FORMAT, "arch": arch.name, "title": arch.title, "measured": asdict(device)}
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(json.dumps(document, indent=1, allow_nan=False) + "\n")
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _stored.cache_clear()


def load(path: Traversable) -> Measured:
    """Read an arch file.

    Raises :class:`~matmill.errors.ArgumentError` if :func:`save` did not write it, ``OSError`` if it cannot be read.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        wrong = _why_not(document)
    except (ValueError, RecursionError) as error:
        wrong = f"no JSON ({error})"
    if wrong:
        raise ArgumentError(
            argument=f"arch file {path}",
            got=wrong,
            wanted="what `matmill probe` wrote",
            fix="Run `matmill probe` on that GPU again, or remove the file.",
        )
    return Measured(**document["measured"])


#: The folder of arch files inside the cache folder, and their format.
_FOLDER, _FORMAT = "arches", 1
_WORDS = {"date", "driver"}
#: Larger figures are refused, so that results computed from them stay finite.
_MOST_FIGURE = 1e30


@cache
def _stored(name: str, folder: Path | None) -> Measured | None:
    folders: list[Traversable] = [files("matmill.arch") / "measured"]
    if folder is not None:
        folders.insert(0, folder / _FOLDER)
    candidates = (each / f"{name}.json" for each in folders)
    return next((load(path) for path in candidates if path.is_file()), None)


def _why_not(document: Any) -> str | None:
    """Return why a JSON document is not an arch file, or None."""
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        return f"no document of format {_FORMAT}"
    values = document.get("measured")
    names = {each.name for each in fields(Measured)}
    if not isinstance(values, dict) or values.keys() != names:
        return "other figures than those known"
    matrix = values["matrix_flops"]
    if not isinstance(matrix, dict):
        return f"matrix_flops {matrix!r}"
    figures = {name: values[name] for name in names - _WORDS - {"matrix_flops"}} | matrix
    for name, value in figures.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _MOST_FIGURE:
            return f"{name} {value!r}"
    return next((f"{name} {values[name]!r}" for name in sorted(_WORDS) if not isinstance(values[name], str)), None)
