"""Counts of a run, by kernel and by source line, under the emulator's names and Nsight Compute's.

The emulator counts what the PTX determines: arithmetic of each class, memory requests, sectors, wavefronts, barriers.
It does not count what ptxas determines (integer instructions of SASS) or what caches determine (hits, DRAM bytes).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

# Tensor-core instructions, which whole warps execute: floating point up to 32 bits, integer, float64, and products of
# warpgroups.
MATRIX_CLASSES = ("hmma", "imma", "dmma", "gmma")
CLASSES = (
    "ffma", "fmul", "fadd", "dfma", "dmul", "dadd", "hfma", "hmul", "hadd", "special", "integer", "convert", "memory",
    "control", "other", *MATRIX_CLASSES,
)  # fmt: skip

# The classes that Nsight Compute has under the same name, prefixed smsp__sass_thread_inst_executed_op_.
_THREAD_CLASSES = ("ffma", "fmul", "fadd", "dfma", "dmul", "dadd", "hfma", "hmul", "hadd")


@dataclass(frozen=True)
class LineCounts:
    """Memory traffic of one source line. ``*_ideal`` is the fewest wavefronts that the accesses' widths allow.

    ``cp_async_requests`` counts the warps that execute a cp.async, ``cp_async_global_requests`` those with a lane that
    reads: a copy whose lanes all fill with zeros does not access global memory. The shared loads and stores include
    ``ldmatrix`` and ``stmatrix``; ``ldmatrix_requests`` and ``stmatrix_requests`` say how many of them these are.
    ``wgmma_shared_bytes`` are the operands that ``wgmma`` reads from shared memory, once per warpgroup.

    ``bulk_loads`` and ``bulk_stores`` are copies of TMA, of boxes or of bytes, with the sectors and bytes of global
    memory that they touch, and their wavefronts in shared memory (for a multicast, in each destination block).
    Reductions count as stores. Copies between blocks of a cluster are not counted.

    ``mbarrier_waits`` counts the warps that execute a ``test_wait`` or a ``try_wait``; one that ends at its time limit
    and is tried again counts once. ``mbarrier_arrivals`` are threads.

    ``copy_waits`` are waits for bytes of asynchronous copies that nobody has waited for before, one for each warp at
    ``cp.async.wait_group`` and ``wait_all`` and one for each phase of an mbarrier; ``copy_bytes_waited`` are these
    bytes, and ``copy_bytes_in_flight`` those issued and not yet waited for then. ``copy_work_clocks`` is the block's
    arithmetic between issue and wait, in clocks at the peak of an SM's units, and ``copy_waits_ready`` counts the
    waits with enough of it to hide a copy: a convention, which the module ``engine.state.copy_waits`` defines.

    ``texture_requests``, ``surface_load_requests`` and ``surface_store_requests`` are warps that execute ``tex`` or
    ``tld4``, ``suld`` and ``sust``. Their sectors depend on undocumented layouts.
    """

    instructions: int = 0
    global_load_requests: int = 0
    global_load_sectors: int = 0
    global_load_bytes: int = 0
    global_store_requests: int = 0
    global_store_sectors: int = 0
    global_store_bytes: int = 0
    shared_load_requests: int = 0
    shared_load_wavefronts: int = 0
    shared_load_wavefronts_ideal: int = 0
    shared_load_bytes: int = 0
    shared_store_requests: int = 0
    shared_store_wavefronts: int = 0
    shared_store_wavefronts_ideal: int = 0
    shared_store_bytes: int = 0
    cp_async_requests: int = 0
    cp_async_global_requests: int = 0
    cp_async_sectors: int = 0
    cp_async_shared_wavefronts: int = 0
    cp_async_bytes: int = 0
    atomics: int = 0
    ldmatrix_requests: int = 0
    stmatrix_requests: int = 0
    bulk_loads: int = 0
    bulk_load_sectors: int = 0
    bulk_load_wavefronts: int = 0
    bulk_load_bytes: int = 0
    bulk_stores: int = 0
    bulk_store_sectors: int = 0
    bulk_store_wavefronts: int = 0
    bulk_store_bytes: int = 0
    wgmma_shared_bytes: int = 0
    mbarrier_waits: int = 0
    mbarrier_arrivals: int = 0
    copy_waits: int = 0
    copy_waits_ready: int = 0
    copy_bytes_waited: int = 0
    copy_bytes_in_flight: int = 0
    copy_work_clocks: int = 0
    texture_requests: int = 0
    surface_load_requests: int = 0
    surface_store_requests: int = 0

    @property
    def bank_conflicts(self) -> int:
        """Shared wavefronts beyond the ideal, loads and stores together."""
        actual = self.shared_load_wavefronts + self.shared_store_wavefronts
        return actual - self.shared_load_wavefronts_ideal - self.shared_store_wavefronts_ideal


@dataclass(frozen=True)
class Conflict:
    """The access of one warp to shared memory with the most passes beyond those that its width needs.

    ``offsets`` are bytes in the block's shared memory for each lane that takes part, None for the others; each lane
    accesses ``width`` bytes. ``array`` is what the source calls the array, which begins at byte ``begin``; ``itemsize``
    and ``shape`` are those of its declaration, 0 and () where they are unknown.
    """

    where: str
    instruction: str
    wavefronts: int
    ideal: int
    width: int
    offsets: tuple[int | None, ...]
    array: str = ""
    begin: int = 0
    itemsize: int = 0
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class MemoryAccess:
    """The traffic of one memory instruction, as a warp executes it.

    ``space`` is "global", "shared" or "local"; ``kind`` "read", "write", "copy", "atomic", "ldmatrix" or "stmatrix".
    ``passes`` are sectors of global memory or wavefronts of shared memory, ``ideal`` the fewest of them that these
    requests and bytes need. Each thread accesses ``width`` bytes (0: unknown). ``x`` and ``y`` are the bytes from a
    thread's address to that of its neighbour in threadIdx.x and .y, None where most pairs do not agree. ``addresses``
    counts those that atomics update, 0 if there are more than 64.
    """

    where: str
    instruction: str
    space: str
    kind: str
    requests: int
    passes: int
    ideal: int
    bytes: int
    width: int = 0
    x: int | None = None
    y: int | None = None
    atomics: int = 0
    addresses: int = 0
    conflict: Conflict | None = None


LINE_FIELDS = tuple(f.name for f in dataclasses.fields(LineCounts))


@dataclass(frozen=True)
class Counters(LineCounts):
    """Counts of one launch.

    ``ffma`` to ``other`` are thread instructions with a true predicate. Requests, wavefronts, ``barriers``
    (``bar.sync`` and the like, once per warp that executes one) and ``instructions`` are per warp; ``atomics`` are
    thread operations. ``*_bytes`` are the bytes that active threads access. ``hmma``, ``imma`` and ``dmma`` are
    ``mma.sync`` per warp, of floating-point numbers up to 32 bits, of integers and of float64, ``gmma`` are
    ``wgmma.mma_async`` per warp; ``matrix_flops`` are their multiplications and additions.
    """

    ffma: int = 0
    fmul: int = 0
    fadd: int = 0
    dfma: int = 0
    dmul: int = 0
    dadd: int = 0
    hfma: int = 0
    hmul: int = 0
    hadd: int = 0
    special: int = 0
    integer: int = 0
    convert: int = 0
    memory: int = 0
    control: int = 0
    other: int = 0
    barriers: int = 0
    hmma: int = 0
    imma: int = 0
    dmma: int = 0
    gmma: int = 0
    matrix_flops: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return the counts by name."""
        return dataclasses.asdict(self)

    def nsight_names(self) -> dict[str, int]:
        """Return the counts that Nsight Compute also has, under its metric names (``.sum``)."""
        thread = "smsp__sass_thread_inst_executed_op_{0}_pred_on"
        return {
            # The hardware counts the reads of cp.async as loads.
            "l1tex__t_requests_pipe_lsu_mem_global_op_ld": self.global_load_requests + self.cp_async_global_requests,
            "l1tex__t_sectors_pipe_lsu_mem_global_op_ld": self.global_load_sectors + self.cp_async_sectors,
            "l1tex__t_requests_pipe_lsu_mem_global_op_st": self.global_store_requests,
            "l1tex__t_sectors_pipe_lsu_mem_global_op_st": self.global_store_sectors,
            "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld": self.shared_load_wavefronts,
            "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st": self.shared_store_wavefronts,
            "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld": (
                self.shared_load_wavefronts - self.shared_load_wavefronts_ideal
            ),
            "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st": (
                self.shared_store_wavefronts - self.shared_store_wavefronts_ideal
            ),
            "smsp__inst_executed_op_global_ld": self.global_load_requests,
            "smsp__inst_executed_op_global_st": self.global_store_requests,
            "smsp__inst_executed_op_shared_ld": self.shared_load_requests - self.ldmatrix_requests,
            "smsp__inst_executed_op_shared_st": self.shared_store_requests - self.stmatrix_requests,
            "smsp__inst_executed_op_ldsm": self.ldmatrix_requests,
            "smsp__inst_executed_op_ldgsts": self.cp_async_requests,
            **{thread.format(name): getattr(self, name) for name in _THREAD_CLASSES},
            **{f"sm__inst_executed_pipe_tensor_op_{name}": getattr(self, name) for name in MATRIX_CLASSES},
        }
