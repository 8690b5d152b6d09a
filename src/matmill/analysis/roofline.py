"""The roofline: the bound of a product or a tile shape, with several memory levels and several arithmetic peaks.

A computation with I operations per byte of a memory level with bandwidth B runs at the rate I * B at most, and at the
peak P of its units at most; both are equal at the balance point P / B. Williams, Waterman, Patterson, "Roofline: an
insightful visual performance model for multicore architectures", CACM 52(4), 2009; the balance of tiles is that of the
blog.

A tile of D of R rows and C columns reads (R + C) elements per step of k and does 2 R C operations with them, whether it
is a block's, from DRAM and L2, or a warp's, from shared memory. Only those reads of a block that miss L2 reach DRAM.
Each figure names its source: the data sheet, the blog, or ``matmill probe``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from matmill.arch import Arch, Measured
from matmill.dtypes import F32, DType
from matmill.errors import ArgumentError
from matmill.problem import Gemm

#: Arithmetic peaks by the instruction that reaches them, in words.
PEAKS = {
    "hmma": "tensor cores, float16",
    "hmma.bf16": "tensor cores, bfloat16",
    "hmma.tf32": "tensor cores, tf32",
    "dmma": "tensor cores, float64",
    "ffma": "FMA units, float32",
    "dfma": "FMA units, float64",
}
#: Memory levels, in words.
LEVELS = {"dram": "DRAM", "l2": "L2", "shared": "shared memory"}
#: Element types of problems, bfloat16 and tf32 included, and the peaks of the units that multiply them.
PEAKS_BY_TYPE: dict[str, tuple[str, ...]] = {
    "float16": ("hmma",),
    "bfloat16": ("hmma.bf16",),
    "tf32": ("hmma.tf32",),
    "float32": ("ffma",),
    "float64": ("dmma", "dfma"),
}
_MATRIX = {"hmma": "float16", "hmma.bf16": "bfloat16", "hmma.tf32": "tf32", "dmma": "float64"}
SHEET, BLOG, CLOCK = "data sheet", "measured by the blog", "128 bytes per clock and SM"
#: The rates that the author of the blog measured on a T4, in operations and bytes per second.
S2_T4 = {"hmma": 49.4e12, "ffma": 7.46e12, "dram": 220e9, "l2": 1280e9, "shared": 3662e9}

REGISTER_BYTES, WARP = 4, 32


@dataclass(frozen=True)
class Figure:
    """A rate in FLOP/s or bytes/s, its source, and the data sheet's figure (None if it has none)."""

    value: float
    source: str
    sheet: float | None


@dataclass(frozen=True)
class Roofs:
    """The arithmetic peaks and memory levels of one GPU; unknown ones are absent."""

    arch: Arch
    peaks: Mapping[str, Figure]
    levels: Mapping[str, Figure]


@dataclass(frozen=True)
class AtRates:
    """A product at some rates: its intensity in FLOP/B, its limit in words, its time, and its rate."""

    intensity: float
    bound: str
    seconds: float
    flops_per_s: float


@dataclass(frozen=True)
class Tile:
    """A block's tile of D, BM x BN in steps of BK, and its warps' tiles, WM x WN (None if unknown).

    Raises :class:`~matmill.errors.ArgumentError` if the warps' tiles do not make up the block's.
    """

    bm: int
    bn: int
    bk: int
    wm: int | None = None
    wn: int | None = None

    def __post_init__(self) -> None:
        if min(self.bm, self.bn, self.bk, self.wm or 1, self.wn or 1) < 1:
            raise ArgumentError(
                argument="tile", got=f"{self}", wanted="sizes of 1 or more", fix="Give BM,BN,BK and WM,WN."
            )
        if self.wm and self.wn and (self.bm % self.wm or self.bn % self.wn):
            raise ArgumentError(
                argument="warp tile",
                got=f"{self.wm}x{self.wn} in a tile of {self.bm}x{self.bn}",
                wanted="a warp tile that divides the block's",
                fix="Take WM that divides BM, and WN that divides BN.",
            )

    @property
    def threads(self) -> int | None:
        """Threads per block."""
        return None if not self.wm or not self.wn else self.bm // self.wm * (self.bn // self.wn) * WARP

    def shared_bytes(self, itemsize: int, stages: int = 1) -> int:
        """Return the bytes of shared memory for ``stages`` tiles of A and B, without padding."""
        return stages * self.bk * (self.bm + self.bn) * itemsize

    def sum_registers(self, dtype: DType) -> int | None:
        """Return a thread's registers for sums, in the type in which products of ``dtype`` are summed."""
        if not self.wm or not self.wn:
            return None
        return -(-self.wm * self.wn * dtype.accumulator.itemsize // (WARP * REGISTER_BYTES))


@dataclass(frozen=True)
class TileBound:
    """The bounds of a tile shape.

    ``block`` and ``warp`` are intensities in FLOP/B. ``needs`` are the balance points to compare them with, by level:
    ``dram`` (misses only), ``l2``, ``shared``. ``cautious_block`` and ``cautious_warp`` are the blog's: the data
    sheet's peak over the mean of both bandwidths, weighted by the hit rate, and over that of shared memory. They are
    None if a figure or the warps' tile is unknown.
    """

    block: float
    warp: float | None
    needs: Mapping[str, float | None]
    cautious_block: float | None
    cautious_warp: float | None
    bound: str
    flops_per_s: float


def roofs(arch: Arch, device: Measured | None = None) -> Roofs:
    """Return the rates of ``arch``: as measured by ``matmill probe``, else as in the blog, else by the data sheet.

    >>> from matmill.arch import get
    >>> result = roofs(get("t4"))
    >>> result.levels["dram"]
    Figure(value=220000000000.0, source='measured by the blog', sheet=320000000000.0)
    """
    sheet_peaks = {"ffma": arch.fp32_flops, "dfma": arch.fp64_flops}
    sheet_peaks |= {name: arch.matrix_flops[kind] for name, kind in _MATRIX.items() if kind in arch.matrix_flops}
    theirs = S2_T4 if arch.name == "t4" else {}
    ours: dict[str, float] = {}
    note = ""
    if device is not None:
        note = f"matmill probe, {device.date}"
        ours = {"ffma": device.fma_flops, "dfma": device.fma64_flops, "dram": device.read_bytes_per_s}
        ours |= {"l2": device.l2_bytes_per_s, "shared": device.shared_bytes_per_s}
        ours |= {name: device.matrix_flops[kind] for name, kind in _MATRIX.items() if kind in device.matrix_flops}

    def known(name: str, sheet: float | None, otherwise: Figure | None = None) -> Figure | None:
        if name in ours:
            # mma.sync does not reach the peak of tensor cores with wgmma, so the source mentions mma.sync.
            return Figure(ours[name], f"{note}, mma.sync" if name in _MATRIX else note, sheet)
        if name in theirs:
            return Figure(theirs[name], BLOG, sheet)
        return otherwise if sheet is None else Figure(sheet, SHEET, sheet)

    peaks = {name: known(name, sheet_peaks.get(name)) for name in PEAKS}
    levels = {
        "dram": known("dram", arch.dram_bytes_per_s),
        "l2": known("l2", None),
        "shared": known("shared", None, Figure(arch.shared_bytes_per_s, CLOCK, None)),
    }
    return Roofs(
        arch,
        {name: figure for name, figure in peaks.items() if figure is not None},
        {name: figure for name, figure in levels.items() if figure is not None},
    )


def balance(roofs: Roofs) -> dict[str, float | None]:
    """Return the FLOP/B at which each peak equals each level, by ``peak/level``; None if one of them is unknown.

    >>> from matmill.arch import get
    >>> result = balance(roofs(get("t4")))
    >>> [int(result[name]) for name in ("hmma/dram", "ffma/dram", "hmma/l2", "hmma/shared")]
    [224, 33, 38, 13]
    """
    return {
        f"{peak}/{level}": roofs.peaks[peak].value / roofs.levels[level].value
        if peak in roofs.peaks and level in roofs.levels
        else None
        for peak in PEAKS
        for level in LEVELS
    }


def unit_for(roofs: Roofs, name: str, argument: str = "dtype") -> str:
    """Return the fastest units of a GPU for an element type (``tf32`` among them), as a key of :data:`PEAKS`.

    Raises :class:`~matmill.errors.ArgumentError` if it has none.

    >>> from matmill.arch import get
    >>> unit_for(roofs(get("h200")), "float64"), unit_for(roofs(get("t4")), "float64")
    ('dmma', 'dfma')
    """
    able = [peak for peak in PEAKS_BY_TYPE.get(name, ()) if peak in roofs.peaks]
    if not able:
        others = [other for other, peaks in PEAKS_BY_TYPE.items() if any(peak in roofs.peaks for peak in peaks)]
        raise ArgumentError(
            argument=argument,
            got=f"{name!r}, for which the rate of the {roofs.arch.title} is not known",
            wanted=f"one of {', '.join(others)}",
            fix="Take another element type, or another GPU.",
        )
    return max(able, key=lambda peak: roofs.peaks[peak].value)


def at_rates(problem: Gemm, roofs: Roofs, unit: str) -> AtRates:
    """Return a product's time at the rates of ``roofs``, if it reads each input and writes each output once.

    With measured rates this is not a bound: a kernel may beat a probe. For the bound see :mod:`.floor`.

    >>> from matmill.arch import get
    >>> h200 = roofs(get("h200"))
    >>> at_rates(Gemm(m=4096, n=4096, k=4096), h200, "ffma").bound
    'compute: FMA units'
    >>> at_rates(Gemm(m=5, n=5, k=30_000_000), h200, "ffma").bound
    'memory: DRAM'
    """
    memory = problem.least_bytes / roofs.levels["dram"].value
    compute = problem.flops / roofs.peaks[unit].value
    seconds = max(memory, compute)
    bound = in_words(unit if compute >= memory else "dram")
    return AtRates(problem.flops / problem.least_bytes, bound, seconds, problem.flops / seconds)


def intensity(rows: int, columns: int, itemsize: int) -> float:
    """Return the FLOP per byte read of a tile of D: 2 R C operations on R + C elements for every step of k.

    >>> round(intensity(256, 128, 2), 1), intensity(256, 256, 2), intensity(64, 64, 2)
    (85.3, 128.0, 32.0)
    """
    return 2 * rows * columns / ((rows + columns) * itemsize)


def mean_bandwidth(roofs: Roofs, hit_rate: float) -> float | None:
    """Return the blog's mean of both bandwidths, weighted by the L2 hit rate, or None if that of L2 is unknown.

    It is more than DRAM can sustain once the misses alone need more than DRAM has: see :func:`tile_bound`.
    """
    if "l2" not in roofs.levels:
        return roofs.levels["dram"].value if hit_rate == 0 else None
    return (1 - hit_rate) * roofs.levels["dram"].value + hit_rate * roofs.levels["l2"].value


def tile_bound(tile: Tile, itemsize: int, roofs: Roofs, unit: str, hit_rate: float) -> TileBound:
    """Return the bounds of a tile shape in the loop over k: the level that takes longest per operation.

    ``hit_rate`` is the share of a block's reads that L2 answers. Raises :class:`~matmill.errors.ArgumentError` for one
    outside 0 to 1.

    >>> from matmill.arch import get
    >>> t4 = roofs(get("t4"))
    >>> result = tile_bound(Tile(256, 128, 64, 64, 64), 2, t4, "hmma", 0.5)
    >>> result.bound, round(result.cautious_block, 1), round(result.cautious_warp, 2)
    ('memory: DRAM', 86.7, 17.75)
    >>> tile_bound(Tile(256, 256, 32, 64, 128), 2, t4, "hmma", 0.5).bound
    'compute: tensor cores'
    """
    if not 0 <= hit_rate <= 1:
        raise ArgumentError(
            argument="L2 hit rate", got=repr(hit_rate), wanted="a share from 0 to 1", fix="Half is 0.5."
        )
    block = intensity(tile.bm, tile.bn, itemsize)
    warp = intensity(tile.wm, tile.wn, itemsize) if tile.wm and tile.wn else None
    peak = roofs.peaks[unit]
    meets = {"dram": None if hit_rate == 1 else block / (1 - hit_rate), "l2": block, "shared": warp}
    attained = {
        level: meeting * roofs.levels[level].value
        for level, meeting in meets.items()
        if meeting is not None and level in roofs.levels
    }
    slowest = min(attained, key=attained.__getitem__, default=unit)
    rate = min(peak.value, attained.get(slowest, peak.value))
    shares = {"dram": 1 - hit_rate, "l2": 1.0, "shared": 1.0}
    needs = {
        level: peak.value * shares[level] / roofs.levels[level].value if level in roofs.levels else None
        for level in LEVELS
    }
    mean = mean_bandwidth(roofs, hit_rate)
    sheet = peak.sheet or peak.value
    return TileBound(
        block=block,
        warp=warp,
        needs=needs,
        cautious_block=None if mean is None else sheet / mean,
        cautious_warp=sheet / roofs.levels["shared"].value,
        bound=in_words(unit if rate >= peak.value else slowest),
        flops_per_s=rate,
    )


def in_words(name: str) -> str:
    """Return a bound in words.

    >>> in_words("dram"), in_words("shared"), in_words("hmma"), in_words("dfma")
    ('memory: DRAM', 'shared memory', 'compute: tensor cores', 'compute: FMA units')
    """
    if name in PEAKS:
        return f"compute: {PEAKS[name].partition(',')[0]}"
    return LEVELS[name] if name == "shared" else f"memory: {LEVELS[name]}"


def storage(name: str, table: Mapping[str, DType]) -> DType:
    """Return the type in which elements of a type of :data:`PEAKS_BY_TYPE` are stored: float32 for ``tf32``."""
    return F32 if name == "tf32" else table[name]
