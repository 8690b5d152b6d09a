"""Facts about GPUs: the peaks that percentages refer to and the limits that launches must respect.

Figures are the vendors' data-sheet values at boost clock (arithmetic counts a fused multiply-add as two operations),
limits are those of the CUDA programming guide's table of compute capabilities. The three oldest GPUs are those of the
slides S1; NVRTC no longer compiles for them, so they serve for comparing percentages only.

What a GPU really does is measured by ``matmill probe`` and kept in an arch file, one JSON document per model, which
:func:`measured` reads when somebody asks. A user's own file, in the cache folder, comes before the one shipped.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from matmill.errors import ArgumentError, unknown_name
from matmill.settings import cache_dir

_KIB = 1024
_MIB = 1024 * 1024
#: Kilobytes of shared memory that an SM can be configured with, as far as it has them; and the bytes of L1 cache that
#: remain beside the most.
_CARVEOUTS, _LEAST_L1 = (0, 8, 16, 32, 64, 100, 132, 164, 196, 228), 28 * _KIB


@dataclass(frozen=True)
class Arch:
    """One GPU model. Rates in FLOP/s and bytes/s, sizes in bytes.

    ``matrix_flops`` are the dense rates of the tensor cores by the type of A and B (``float16``, ``bfloat16``,
    ``tf32``, ``float64``), with sums in float32, of float64 in float64; empty where there are none or the sheet does
    not say.
    """

    name: str
    title: str
    capability: tuple[int, int]
    sms: int
    boost_hz: float
    fp32_flops: float
    fp64_flops: float
    dram_bytes_per_s: float
    l2_bytes: int
    shared_per_sm: int
    shared_per_block: int
    threads_per_sm: int
    blocks_per_sm: int
    registers_per_sm: int = 65536
    max_threads_per_block: int = 1024
    shared_reserved: int = 1024
    matrix_flops: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def shared_bytes_per_s(self) -> float:
        """Peak rate at which all SMs together read shared memory: 32 banks of 4 bytes per clock each.

        Turing's deliver half of that (Jia et al., "Dissecting the NVidia Turing T4 GPU via Microbenchmarking", 2019).
        """
        return (64.0 if self.capability == (7, 5) else 128.0) * self.sms * self.boost_hz

    @property
    def fp32_lanes(self) -> int:
        """FP32 units of all SMs together, each of which executes one FMA per clock.

        >>> get("a100").fp32_lanes
        6912
        """
        return self.sms * round(self.fp32_flops / (2 * self.sms * self.boost_hz))

    @property
    def target(self) -> str:
        """The name NVRTC compiles for: ``sm_90a`` on Hopper and the Blackwells, whose own features need the suffix."""
        major, minor = self.capability
        return f"sm_{major}{minor}{'a' if major >= 9 else ''}"

    @property
    def compiles(self) -> bool:
        """False for GPUs older than the compiler supports (before compute capability 7.5)."""
        return self.capability >= (7, 5)

    def peak(self, dtype_name: str) -> float:
        """Peak FMA rate in FLOP/s for ``float32`` or ``float64``."""
        return self.fp64_flops if dtype_name == "float64" else self.fp32_flops

    def occupancy(self, threads: int, registers: int, shared_bytes: int) -> float:
        """Resident warps over the most the SM can hold, for one kernel's block.

        ``registers`` per thread are allocated in units of 256 per warp; ``shared_bytes`` is static plus dynamic, to
        which the driver adds a reserve on GPUs since Ampere.

        >>> get("h200").occupancy(threads=256, registers=128, shared_bytes=0)
        0.25
        """
        blocks, _ = self.resident(threads, registers, shared_bytes)
        warps = -(-threads // 32)
        return blocks * warps / (self.threads_per_sm // 32)

    def resident(self, threads: int, registers: int, shared_bytes: int) -> tuple[int, tuple[str, ...]]:
        """Blocks that an SM holds at once, and what keeps it from one more.

        The limits named are of ``blocks``, ``threads``, ``registers`` and ``shared memory``: all that allow no more
        than this. Arguments as of :meth:`occupancy`.

        >>> get("h200").resident(threads=256, registers=128, shared_bytes=0), get("t4").resident(256, 166, 49152)
        ((2, ('registers',)), (1, ('registers', 'shared memory')))
        """
        warps = -(-threads // 32)
        per_warp = -(-registers * 32 // 256) * 256
        allowed = {
            "blocks": self.blocks_per_sm,
            "threads": self.threads_per_sm // (warps * 32),
            "registers": self.registers_per_sm // max(1, per_warp * warps),
            "shared memory": self.shared_per_sm // max(1, shared_bytes + self.shared_reserved),
        }
        least = min(allowed.values())
        return least, tuple(name for name, blocks in allowed.items() if blocks == least)

    def carveout(self, blocks: int, shared_bytes: int) -> int | None:
        """Bytes of shared memory that an SM is set up with for ``blocks`` blocks of ``shared_bytes`` each, or None.

        Shared memory and the L1 cache are parts of one memory, divided in one of a few ways (CUDA programming guide,
        "Compute Capabilities"). None where there is not enough of it.

        >>> get("h200").carveout(1, 101_376), get("h200").carveout(1, 101_377), get("h200").carveout(3, 101_376)
        (102400, 135168, None)
        """
        needed = blocks * (shared_bytes + self.shared_reserved)
        ways = (kilobytes * _KIB for kilobytes in _CARVEOUTS)
        return min((way for way in ways if needed <= way <= self.shared_per_sm), default=None)

    def l1_bytes(self, carveout: int) -> int:
        """Bytes of L1 cache beside that much shared memory: 28 KB beside the most there can be.

        >>> get("h200").l1_bytes(102_400), get("a100").l1_bytes(0)
        (159744, 196608)
        """
        return self.shared_per_sm + _LEAST_L1 - carveout


@dataclass(frozen=True)
class Measured:
    """What ``matmill probe`` found on one GPU.

    Latencies ``sigma_*`` in cycles of the SM's clock: of an addition, a multiplication and an FMA in float32 and of
    an FMA in float64; of a load from memory beyond L2 (``sigma_g``), from L2, from L1 and
    from shared memory (``sigma_s``). ``launch_seconds`` is the time from one kernel to the next where both do nothing,
    ``enqueue_seconds`` what the host spends on a launch. Bandwidths in bytes/s, a copy's counting what is read and
    what is written. Rates in FLOP/s, an FMA being two operations: ``fma_flops`` of independent chains,
    ``fma_outer_flops`` of outer products as in a product's inner loop, both float32, ``fma64_flops`` float64,
    ``matrix_flops`` of mma.sync by the type of A and B. ``clock_hz`` is the clock while the latencies were measured,
    ``date`` in ISO 8601.
    """

    sigma_add: float
    sigma_mul: float
    sigma_fma: float
    sigma_fma64: float
    sigma_g: float
    sigma_l2: float
    sigma_l1: float
    sigma_s: float
    launch_seconds: float
    enqueue_seconds: float
    read_bytes_per_s: float
    copy_bytes_per_s: float
    write_bytes_per_s: float
    l2_bytes_per_s: float
    shared_bytes_per_s: float
    fma_flops: float
    fma_outer_flops: float
    fma64_flops: float
    clock_hz: float
    date: str
    driver: str
    matrix_flops: Mapping[str, float] = field(default_factory=dict, hash=False)


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
        ),
        replace(
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
        ),
        _A100,
        _H100,
        replace(_H100, name="h200", title="H200 SXM 141 GB", dram_bytes_per_s=4800e9, l2_bytes=60 * _MIB),
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
        ),
    )
}

#: The arch that percentages refer to where there is no GPU and none was named.
DEFAULT = "h200"


def get(name: str, argument: str = "arch") -> Arch:
    """The arch of that name. Raises :class:`~matmill.errors.UnknownNameError` with the nearest name.

    >>> get("t4").target
    'sm_75'
    """
    found = ARCHES.get(name.lower())
    if found is None:
        raise unknown_name(argument, name, ARCHES)
    return found


def measured(arch: Arch) -> Measured | None:
    """What was measured on ``arch``: by this user, else what is shipped, else None. Reads the disk once per model.

    Raises :class:`~matmill.errors.ArgumentError` for a file that is none of :func:`save`.
    """
    return _stored(arch.name, cache_dir())


def user_file(arch: Arch) -> Path | None:
    """Where :func:`measured` looks first for ``arch``, or None where the cache is switched off."""
    folder = cache_dir()
    return None if folder is None else folder / _FOLDER / f"{arch.name}.json"


def save(path: Path, arch: Arch, found: Measured) -> None:
    """Writes the arch file of ``arch``: all of it or, where that fails with an OSError, nothing."""
    document = {"format": _FORMAT, "arch": arch.name, "title": arch.title, "measured": asdict(found)}
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
    """What an arch file says.

    Raises :class:`~matmill.errors.ArgumentError` where it was not written by :func:`save`, ``OSError`` where it cannot
    be read.
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


#: The folder of arch files, in the package and in the cache folder, and their format.
_FOLDER, _FORMAT = "arches", 1
_WORDS = {"date", "driver"}
#: No figure of a GPU comes near this, and what is computed from smaller ones stays finite.
_MOST_FIGURE = 1e30


@cache
def _stored(name: str, folder: Path | None) -> Measured | None:
    roots: list[Traversable] = [files("matmill")] if folder is None else [folder, files("matmill")]
    candidates = (root / _FOLDER / f"{name}.json" for root in roots)
    return next((load(path) for path in candidates if path.is_file()), None)


def _why_not(document: Any) -> str | None:
    """What keeps a JSON document from being an arch file, or None."""
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
