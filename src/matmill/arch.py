"""Facts about GPUs: the peaks that percentages refer to and the limits that launches must respect.

Figures are the vendors' data-sheet values at boost clock (arithmetic counts a fused multiply-add as two operations),
limits are those of the CUDA programming guide's table of compute capabilities. The three oldest GPUs are those of the
slides S1; NVRTC no longer compiles for them, so they serve for comparing percentages only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from matmill.errors import unknown_name


@dataclass(frozen=True)
class Arch:
    """One GPU model. Rates in FLOP/s and bytes/s, sizes in bytes."""

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
        """Peak multiply-add rate in FLOP/s for ``float32`` or ``float64``."""
        return self.fp64_flops if dtype_name == "float64" else self.fp32_flops

    def occupancy(self, threads: int, registers: int, shared_bytes: int) -> float:
        """Resident warps over the most the SM can hold, for one kernel's block.

        ``registers`` per thread are allocated in units of 256 per warp; ``shared_bytes`` is static plus dynamic, to
        which the driver adds a reserve on GPUs since Ampere.

        >>> get("h200").occupancy(threads=256, registers=128, shared_bytes=0)
        0.25
        """
        warps = -(-threads // 32)
        per_warp = -(-registers * 32 // 256) * 256
        blocks = min(
            self.blocks_per_sm,
            self.threads_per_sm // (warps * 32),
            self.registers_per_sm // max(1, per_warp * warps),
            self.shared_per_sm // max(1, shared_bytes + self.shared_reserved),
        )
        return blocks * warps / (self.threads_per_sm // 32)


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
