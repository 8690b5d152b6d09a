"""The facts about a GPU: the data sheet's figures and limits, and a probe's measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_KIB = 1024
#: Possible sizes of an SM's shared memory in KiB, up to its maximum, and the bytes of L1 cache that remain beside the
#: maximum.
_CARVEOUTS, _LEAST_L1 = (0, 8, 16, 32, 64, 100, 132, 164, 196, 228), 28 * _KIB
#: Bytes in which a block's shared memory is allocated; blocks on an SM beyond which one more makes little difference.
_SHARED_STEP, _MOST_SHARE = 128, 4


@dataclass(frozen=True)
class Arch:
    """One GPU model. Rates in FLOP/s and bytes/s, sizes in bytes.

    ``matrix_flops`` are the dense rates of the tensor cores by the type of A and B (``float16``, ``bfloat16``,
    ``tf32``, ``float64``), with float32 sums (float64 for float64); empty if there are none or the sheet does not say.
    ``source`` is the figures' source.
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
    source: str = ""

    @property
    def shared_bytes_per_s(self) -> float:
        """Peak rate at which all SMs together read shared memory: 32 banks of 4 bytes per clock each.

        Turing delivers half of that (Jia et al., "Dissecting the NVidia Turing T4 GPU via Microbenchmarking", 2019).
        """
        return (64.0 if self.capability == (7, 5) else 128.0) * self.sms * self.boost_hz

    @property
    def fp32_lanes(self) -> int:
        """FP32 units of all SMs together, each of which executes one FMA per clock.

        >>> from matmill.arch import get
        >>> get("a100").fp32_lanes
        6912
        """
        return self.sms * round(self.fp32_flops / (2 * self.sms * self.boost_hz))

    @property
    def target(self) -> str:
        """The target for NVRTC: ``sm_90a`` on Hopper, likewise on Blackwell, whose special features need the suffix."""
        major, minor = self.capability
        return f"sm_{major}{minor}{'a' if major >= 9 else ''}"

    @property
    def compiles(self) -> bool:
        """False for GPUs older than NVRTC supports (before compute capability 7.5)."""
        return self.capability >= (7, 5)

    def peak(self, dtype_name: str) -> float:
        """Return the peak FMA rate of sums of a type in FLOP/s: ``float32``, ``float64``, ``uint32`` or ``uint64``.

        Complex types have the rates of their parts.

        An SM multiplies and adds 64 integers of 32 bits per clock (CUDA programming guide, "Throughput of Native
        Arithmetic Instructions"). For 64 bits a quarter of that is assumed: one wide product and two of 32 bits.
        """
        shares = {"uint32": 1.0, "uint64": 0.25}
        if dtype_name in shares:
            return shares[dtype_name] * 2 * 64 * self.sms * self.boost_hz
        return self.fp64_flops if dtype_name in {"float64", "complex128"} else self.fp32_flops

    def occupancy(self, threads: int, registers: int, shared_bytes: int) -> float:
        """Return the warps of one kernel that an SM holds, relative to the most it can hold.

        ``registers`` per thread are allocated in units of 256 per warp; ``shared_bytes`` is static plus dynamic, to
        which the driver adds a reserve on GPUs since Ampere.

        >>> from matmill.arch import get
        >>> get("h200").occupancy(threads=256, registers=128, shared_bytes=0)
        0.25
        """
        blocks, _ = self.resident(threads, registers, shared_bytes)
        warps = -(-threads // 32)
        return blocks * warps / (self.threads_per_sm // 32)

    def resident(self, threads: int, registers: int, shared_bytes: int) -> tuple[int, tuple[str, ...]]:
        """Return the number of blocks that an SM holds at once, and the limits that prevent one more.

        The limits are some of ``blocks``, ``threads``, ``registers`` and ``shared memory``: all that allow no more
        blocks than this. The arguments are those of :meth:`occupancy`.

        >>> from matmill.arch import get
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
        """Return the bytes of shared memory that an SM reserves for ``blocks`` blocks of ``shared_bytes``, or None.

        Shared memory and the L1 cache are parts of one memory, divided in one of a few ways (CUDA programming guide,
        "Compute Capabilities"). None if it does not have that much.

        >>> from matmill.arch import get
        >>> get("h200").carveout(1, 101_376), get("h200").carveout(1, 101_377), get("h200").carveout(3, 101_376)
        (102400, 135168, None)
        """
        needed = blocks * (shared_bytes + self.shared_reserved)
        ways = (kilobytes * _KIB for kilobytes in _CARVEOUTS)
        return min((way for way in ways if needed <= way <= self.shared_per_sm), default=None)

    def even_shared(self, blocks: int, shared_bytes: int) -> int:
        """Return the dynamic shared memory with which no SM holds more than its share of ``blocks`` at once.

        That is at least ``shared_bytes``, which is all that a block needs, and stays that where nothing more helps.

        >>> from matmill.arch import get
        >>> get("h200").even_shared(256, 19_200), get("h200").even_shared(128, 19_200), get("h200").even_shared(9999, 0)
        (76928, 115840, 0)
        """
        share = -(-blocks // self.sms)
        least = self.shared_per_sm // (share + 1) // _SHARED_STEP * _SHARED_STEP + _SHARED_STEP - self.shared_reserved
        fits = share * (least + self.shared_reserved) <= self.shared_per_sm and least <= self.shared_per_block
        return max(shared_bytes, least) if share <= _MOST_SHARE and fits else shared_bytes

    def l1_bytes(self, carveout: int) -> int:
        """Return the bytes of L1 cache beside that much shared memory: 28 KB beside the largest carveout.

        >>> from matmill.arch import get
        >>> get("h200").l1_bytes(102_400), get("a100").l1_bytes(0)
        (159744, 196608)
        """
        return self.shared_per_sm + _LEAST_L1 - carveout


@dataclass(frozen=True)
class Measured:
    """Measurements of ``matmill probe`` on one GPU.

    Latencies ``sigma_*`` in cycles of the SM's clock: of an addition, a multiplication and an FMA in float32 and of an
    FMA in float64; of a load from memory beyond L2 (``sigma_g``), from L2, from L1 and from shared memory
    (``sigma_s``). ``launch_seconds`` is the time from one empty kernel to the next, ``enqueue_seconds`` the host's time
    for a launch. Bandwidths are in bytes/s; a copy's counts both reads and writes. Rates in FLOP/s, an FMA being two
    operations: ``fma_flops`` of independent chains, ``fma_outer_flops`` of outer products as in a product's inner loop,
    both float32, ``fma64_flops`` float64, ``matrix_flops`` of mma.sync by the type of A and B. ``clock_hz`` is the
    clock while the latencies were measured, ``date`` in ISO 8601.
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
