"""The verdict on an emulated launch: its costliest lines, each with the cause, the remedy and a bound of the gain.

A rule is a function that looks at a report and yields advice; :data:`RULES` has all. What a rule sees is priced in
cycles of an SM (a pass over shared memory takes one, a sector of global memory half of one, a warp instruction a
quarter), to rank advice and to be silent about trifles. The prices are the units' peak rates, not a model of time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod
from typing import TypeAlias

import numpy as np

from matmill.arch import ARCHES, DEFAULT, Arch, get
from matmill.emulator import Report
from matmill.emulator.memory.banks import LANES, PASS_BYTES, SECTOR_BYTES, shared_wavefronts
from matmill.emulator.report.counters import Conflict, MemoryAccess
from matmill.launch import Launch

#: Cycles of an SM that a sector and a warp instruction take at the units' peak rates.
_SECTOR, _INSTRUCTION = 0.5, 0.25
#: Operations of the tensor cores in a cycle of an SM: float16 on Hopper.
_MATRIX_FLOPS = 4096
#: Neighbouring threads so many bytes apart access parts of structs; further apart they access a column.
_STRUCT = 64
#: Advice is given where it may save this share of a launch's cycles, and this factor of what it is about.
_WORTH, _FACTOR = 0.05, 1.5
#: The widest access of a thread, in bytes.
_WIDEST = 16
#: Below this occupancy warps alone do not hide the latency of loads.
_LOW_OCCUPANCY = 0.25
_WORK = re.compile(r"\s(?:ld\.shared|ldmatrix|fma|mma|wgmma|wmma|mul\.f|add\.f|mad\.f)")


@dataclass(frozen=True)
class Advice:
    """One thing to improve: the ``rule``, the source line (or ""), the cause, the remedy, and a bound of the gain.

    ``unit`` goes from ``before`` to ``after`` at best. ``cycles`` are what it wastes at the least, in cycles of an SM.
    """

    rule: str
    where: str
    cause: str
    remedy: str
    unit: str
    before: float
    after: float
    cycles: float = 0.0

    @property
    def gain(self) -> str:
        """The bound in words.

        >>> Advice("bank conflicts", "k.cu:7", "32 passes where 1 would do", "pad", "shared passes", 1024, 32).gain
        'shared passes 1,024 → 32'
        """
        percent = self.unit.endswith("%")
        before, after = (f"{n:.0%}" if percent else f"{n:,.0f}" for n in (self.before, self.after))
        return f"{self.unit.removesuffix(' %')} {before} → {after}"

    def __str__(self) -> str:
        return f"{self.where}{': ' if self.where else ''}{self.cause}; {self.remedy}: {self.gain}"


@dataclass(frozen=True)
class EmulatedLaunch(Report):
    """A report with the launch that it is about: what rules look at. One that ``faulted`` ended early."""

    launch: Launch = field(kw_only=True)
    ptx: str = field(default="", kw_only=True, repr=False)
    static_shared: int = field(default=0, kw_only=True)
    faulted: bool = field(default=False, kw_only=True)


Rule: TypeAlias = Callable[[EmulatedLaunch], Iterator[Advice]]


def verdict(report: EmulatedLaunch) -> tuple[Advice, ...]:
    """Return the advice of all rules: outputs that lack values, then costly lines in their order, then the launch.

    A launch that faulted has none.
    """
    if report.faulted:
        return ()
    counts = report.counters.as_dict()
    passes = sum(count for name, count in counts.items() if name.endswith("_wavefronts"))
    sectors = sum(count for name, count in counts.items() if name.endswith("_sectors"))
    products = counts["matrix_flops"] / _MATRIX_FLOPS
    least = _WORTH * (passes + _SECTOR * sectors + _INSTRUCTION * counts["instructions"] + products)
    lines = [advice for rule in _LINE_RULES for advice in rule(report) if advice.cycles >= least]
    lines.sort(key=lambda advice: -advice.cycles)
    return (*uncovered_output(report), *lines, *(advice for rule in _LAUNCH_RULES for advice in rule(report)))


def arch_of(report: EmulatedLaunch) -> Arch:
    """Return the GPU in the table that the PTX was compiled for."""
    target = re.search(r"\.target\s+(\w+)", report.ptx)
    known = [get(DEFAULT), *ARCHES.values()]
    return next((each for each in known if target is not None and each.target == target[1]), known[0])


def uncovered_output(report: EmulatedLaunch) -> Iterator[Advice]:
    """Advise on arrays of which a launch has left a part without a value."""
    for hazard in report.hazards:
        written = re.search(r": (wrote (?:only ([\d.]+)%|nothing) of .*): (look at .*)", hazard.message)
        if hazard.kind == "unwritten-output" and written is not None:
            share = float(written[2] or 0) / 100
            yield Advice("uncovered output", "", written[1], written[3], "elements written %", share, 1.0)


def bank_conflicts(report: EmulatedLaunch) -> Iterator[Advice]:
    """Advise on lines whose accesses to shared memory take more passes than their widths need."""
    widest = max((each.width for each in report.accesses if each.space == "shared"), default=0)
    for line in _lines(report, "shared"):
        if line.passes >= _FACTOR * line.ideal:
            worst = line.conflict
            one, least = (worst.wavefronts, worst.ideal) if worst else (line.passes / line.requests, _least(line))
            cause = f"{one:.3g} passes where {least:.3g} would do (bank conflicts)"
            remedy = _padding(worst, widest) if worst else "swizzle the rows of the tile, or pad each by 16 bytes"
            yield _advice("bank conflicts", line, cause, remedy, "shared passes")


def _padding(conflict: Conflict, align: int) -> str:
    """Return what frees an access of conflicts: padded rows, if that does, of the array's own extents if known.

    Padded rows are still aligned for the widest access of the kernel, ``align`` bytes.
    """
    lanes = np.array([-1 if offset is None else offset - conflict.begin for offset in conflict.offsets], np.int64)
    active = lanes >= 0
    steps = np.unique(np.diff(lanes[active]))
    itemsize, step = conflict.itemsize or 4, int(steps[0]) if len(steps) == 1 else 0
    row = conflict.shape[-1] * itemsize if len(conflict.shape) > 1 else abs(step)
    name = conflict.array.rsplit("::", 1)[-1] or "the tile"
    if row < PASS_BYTES // 4 or (len(conflict.shape) < 2 and row < PASS_BYTES):
        apart = f"are {abs(step)} bytes apart" if step else "meet in few banks"
        return f"neighbouring threads {apart} in {name}: let them take neighbouring words, or swizzle"
    for padding in (1, 2, 4, 8, 16):
        wide = row + padding * itemsize
        if wide % max(align, conflict.width):
            continue
        moved = np.where(active, lanes // row * wide + lanes % row, 0).reshape(1, LANES)
        stores = conflict.instruction.startswith("st")
        passes = shared_wavefronts(moved, active.reshape(1, LANES), conflict.width, store=stores)[0]
        if passes <= conflict.ideal:
            if len(conflict.shape) > 1:
                extents = (*conflict.shape[:-1], conflict.shape[-1] + padding)
                return f"pad {name} to {''.join(f'[{extent}]' for extent in extents)}"
            return f"pad the rows of {name} from {row} to {wide} bytes"
    return f"swizzle {name} (matmill layout tries layouts)"


def uncoalesced(report: EmulatedLaunch) -> Iterator[Advice]:
    """Advise on lines where each thread of a warp accesses a sector of its own."""
    block, swap = report.launch.block, _swap_helps(report)
    for line in _lines(report, "global"):
        far = line.x is None or abs(line.x) > _STRUCT
        if line.passes < _FACTOR * line.ideal or not far or line.kind == "atomic":
            continue
        if line.x is None:
            apart = f"{line.kind} scattered addresses"
            remedy = "sort the indices, or let several threads share the row of each"
        else:
            apart = f"{line.kind} a column, {abs(line.x):,} bytes apart"
            remedy = "let neighbouring threads take neighbouring elements, or stage a tile in shared memory"
        after = None
        if swap and line.x is not None and line.y is not None:
            remedy = "swap the roles of threadIdx.x and .y"
            after = line.requests * _modelled(line.y, line.x, line.width, block[0])
        elif block[1] > 1 and line.x is not None:
            remedy = "stage a tile in shared memory: rows between it and global memory, columns inside of it"
        yield _advice(
            "uncoalesced", line, f"{_each(line)}: neighbouring threads {apart}", remedy, "sectors", after=after
        )


def _each(line: MemoryAccess) -> str:
    return f"{line.passes / line.requests:.3g} sectors a request where {_least(line):.3g} would do"


def _least(line: MemoryAccess) -> float:
    return line.ideal / line.requests


def _modelled(x: int, y: int, width: int, wide: int) -> int:
    """Return the sectors of a warp of a block ``wide`` threads wide, whose addresses differ by ``x`` and ``y``.

    >>> _modelled(4, 4096, 4, 32), _modelled(4096, 4, 4, 32), _modelled(4, 4096, 4, 16)
    (4, 32, 4)
    """
    lane = np.arange(LANES)
    addresses = lane % wide * x + lane // wide * y
    return len(np.unique(np.concatenate([addresses, addresses + width - 1]) // SECTOR_BYTES))


def _swap_helps(report: EmulatedLaunch) -> bool:
    """Tell whether exchanging threadIdx.x and .y saves a third of the sectors of all accesses together."""
    now = swapped = 0
    for each in report.accesses:
        if each.space == "global" and each.x is not None and each.y is not None:
            now += each.requests * _modelled(each.x, each.y, each.width, report.launch.block[0])
            swapped += each.requests * _modelled(each.y, each.x, each.width, report.launch.block[0])
    return now >= _FACTOR * swapped > 0


def unused_bytes(report: EmulatedLaunch) -> Iterator[Advice]:
    """Advise on lines of whose sectors the threads leave bytes unused between them."""
    for line in _lines(report, "global"):
        step = abs(line.x or 0)
        if line.width < step <= _STRUCT and line.passes >= _FACTOR * line.ideal and line.kind != "atomic":
            cause = f"{_each(line)}: threads {line.kind} {line.width} of every {step} bytes"
            remedy = "keep each member in an array of its own, or access a thread's bytes by vectors"
            yield _advice("unused bytes", line, cause, remedy, "sectors")


def small_vectors(report: EmulatedLaunch) -> Iterator[Advice]:
    """Advise on lines that could access 16 bytes at a time: neighbours are side by side, and each thread repeats."""
    warps = report.launch.blocks * -(-report.launch.threads_per_block // LANES)
    for line in _lines(report, "global"):
        coalesced = line.x == line.width and line.passes < _FACTOR * line.ideal
        times = line.requests / warps
        if line.kind in {"read", "write"} and coalesced and line.width < _WIDEST <= line.width * times:
            after = line.requests * line.width / _WIDEST
            # Requests of less than 128 bytes leave a part of the data path unused.
            unused = max(line.requests - line.bytes / PASS_BYTES, 0)
            cause = f"{line.width} bytes a {line.kind}, {times:.3g} {line.kind}s a thread"
            remedy = f"{line.kind} 16 bytes at a time (float4, uint4), where rows start on 16"
            cycles = _INSTRUCTION * (line.requests - after) + unused
            yield Advice("small vectors", line.where, cause, remedy, "requests", line.requests, after, cycles)


def contended_atomics(report: EmulatedLaunch) -> Iterator[Advice]:
    """Advise on atomics of whole warps on few addresses of global memory."""
    for access in report.accesses:
        count, addresses = access.atomics, access.addresses
        if access.space != "global" or not addresses or count < 2 * max(LANES * addresses, access.requests):
            continue
        if addresses == 1:
            cause, after = f"{count:,} atomics on one address, one after another", access.requests
            remedy = "sum in the warp first (__shfl_down_sync), then one atomic per warp"
        else:
            cause, after = f"{count:,} atomics on {addresses} addresses", min(report.launch.blocks * addresses, count)
            remedy = "count in shared memory first, then one atomic per block and address"
        yield Advice("atomics on one address", access.where, cause, remedy, "atomics", count, after, count - after)


def local_memory(report: EmulatedLaunch) -> Iterator[Advice]:
    """Advise on lines that access arrays in local memory, which is global memory."""
    for line in _lines(report, "local"):
        cause = f"local memory, behind the caches, is {'written' if line.kind == 'write' else 'read'}"
        remedy = "index each thread's array by constants (unroll the loops), or put it in shared memory"
        cycles = _SECTOR * line.bytes / SECTOR_BYTES
        yield Advice("local memory", line.where, cause, remedy, "local requests", line.requests, 0, cycles)


def divergence(report: EmulatedLaunch) -> Iterator[Advice]:
    """Advise on lines that a third of the lanes do not take part in, or on blocks that are smaller than a warp."""
    size = report.launch.threads_per_block
    lines = [(at, report.by_line[at].instructions, threads) for at, threads in report.threads_by_line.items()]
    remedy = "let whole warps take one way: branch on threadIdx.x / 32, or regroup the work"
    if size < LANES and lines:
        lines = [("", sum(warps for _, warps, _ in lines), sum(threads for *_, threads in lines))]
        remedy = f"make blocks of a multiple of 32 threads, not {size}"
    for where, warps, threads in lines:
        if warps * LANES >= _FACTOR * threads:
            cause, least = f"{threads / warps:.3g} of 32 lanes work on average", -(-threads // LANES)
            cycles = _INSTRUCTION * (warps - least)
            yield Advice("divergence", where, cause, remedy, "warp instructions", warps, least, cycles)


def serialised_copies(report: EmulatedLaunch) -> Iterator[Advice]:
    """Advise on loops that wait for each cp.async as soon as it is issued, with no work in between."""
    copies = [each for each in report.accesses if each.space == "global" and each.kind == "copy" and each.requests]
    parts = re.split(r"cp\.async\.wait_(?:all|group\s+0);", report.ptx)
    for before, after in pairwise(parts):
        between = re.split(r"cp\.async\.c[ag]\.[^;]*;", before)
        labels = re.findall(r"^\s*(\$?\w+):", "".join(between[:-1]), re.MULTILINE)
        loops = any(re.search(rf"\sbra(?:\.uni)?\s+{re.escape(label)};", after) for label in labels)
        if copies and len(between) > 1 and loops and not _WORK.search(between[-1]):
            worst = max(copies, key=lambda each: each.bytes)
            sectors = sum(each.passes for each in copies)
            cause = "each copy is waited for as soon as it is issued"
            remedy = "issue the next tile's copies first (two buffers), then wait for this one's (wait_group 1)"
            yield Advice(
                "serialised copies", worst.where, cause, remedy, "sectors copied while nothing else runs", sectors, 0,
                _SECTOR * sectors,
            )  # fmt: skip
            return


def idle_sms(report: EmulatedLaunch) -> Iterator[Advice]:
    """Advise on grids of fewer blocks than the GPU has SMs."""
    arch, blocks = arch_of(report), report.launch.blocks
    if blocks < arch.sms:
        cause = f"no work for {arch.sms - blocks} of {arch.sms} SMs: grid of {blocks} on the {arch.title}"
        yield Advice(
            "idle SMs", "", cause, "make more blocks, unless this is a small test", "SMs at work", blocks, arch.sms
        )


def low_occupancy(report: EmulatedLaunch) -> Iterator[Advice]:
    """Advise on blocks of whose warps an SM holds too few, where no asynchronous copies hide latency instead.

    What limits it is shared memory: the limits of threads and blocks allow half of all warps, whatever their size.
    """
    arch, launch, counts = arch_of(report), report.launch, report.counters
    threads, shared = prod(launch.block), launch.dynamic_shared + report.static_shared
    blocks, _ = arch.resident(threads, 1, shared)
    occupancy = arch.occupancy(threads, 1, shared)
    if not blocks or occupancy >= _LOW_OCCUPANCY or counts.cp_async_requests or counts.bulk_loads:
        return
    held = f"{blocks} block{'s' if blocks > 1 else ''}"
    cause = f"an SM holds {held} of {threads} threads at most, for {shared:,} bytes of shared memory each"
    remedy = "use less of it, or more threads a block"
    yield Advice("low occupancy", "", cause, remedy, "occupancy %", occupancy, 1.0)


_LINE_RULES: tuple[Rule, ...] = (
    bank_conflicts, uncoalesced, unused_bytes, small_vectors, contended_atomics, local_memory, divergence,
    serialised_copies,
)  # fmt: skip
_LAUNCH_RULES: tuple[Rule, ...] = (idle_sms, low_occupancy)
#: All rules.
RULES: tuple[Rule, ...] = (uncovered_output, *_LINE_RULES, *_LAUNCH_RULES)


def _lines(report: EmulatedLaunch, space: str) -> Iterator[MemoryAccess]:
    """Yield the accesses to a state space, those of one line that are alike as one.

    All of a line to shared memory are one, with the worst conflict.
    """
    groups: dict[tuple[object, ...], list[MemoryAccess]] = {}
    for each in report.accesses:
        if each.space == space and each.requests:
            key = (each.where,) if space == "shared" else (each.where, each.kind, each.width, each.x)
            groups.setdefault(key, []).append(each)
    for group in groups.values():
        totals = {name: sum(getattr(each, name) for each in group) for name in ("requests", "passes", "ideal", "bytes")}
        conflicts = [each.conflict for each in group if each.conflict is not None]
        yield replace(group[0], **totals, conflict=max(conflicts, key=lambda each: each.wavefronts, default=None))


def _advice(rule: str, line: MemoryAccess, cause: str, remedy: str, unit: str, *, after: int | None = None) -> Advice:
    """Return advice that brings a line's passes down to ``after``, or to the fewest possible."""
    least = line.ideal if after is None else after
    price = _SECTOR if line.space == "global" else 1
    return Advice(rule, line.where, cause, remedy, unit, line.passes, least, price * (line.passes - least))
