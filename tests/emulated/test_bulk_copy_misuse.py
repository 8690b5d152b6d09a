"""Bulk copies that TMA does not take, or that nobody waits for: what is reported, of which thread and instruction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from matmill.emulator import Hazard, KernelFault
from matmill.errors import EmulationError
from matmill.launch import Pointer, TensorMap
from support.bulk_ptx import (
    BETWEEN,
    CLUSTER_SYNC,
    COMMIT,
    STORED,
    TO_GLOBAL,
    TO_SHARED,
    bulk,
    emulate,
    expect,
    fill,
    load,
    store,
    wait,
)  # fmt: skip

MATRIX = TensorMap(Pointer("x", 0), "uint32", (64, 16), (256,), (8, 4))
BEYOND = replace(MATRIX, sizes=(64, 32))
READ_ONLY = replace(MATRIX, pointer=Pointer("c", 0))
HALVES = replace(MATRIX, element="float16")
OUT = replace(MATRIX, pointer=Pointer("o", 0))
MAPS = {"m": MATRIX, "beyond": BEYOND, "halves": HALVES, "c_map": READ_ONLY, "out": OUT}


def found(body: str, *, late: bool = False, cluster: int = 1, pdl: bool = False) -> list[Hazard]:
    """Return the hazards of a kernel in one schedule; x and o are 4096 bytes, c is read-only."""
    arrays = {"x": np.arange(1024, dtype=np.uint32), "c": np.zeros(1024, np.uint32), "o": np.zeros(1024, np.uint32)}
    try:
        report = emulate(body, arrays, MAPS, access={"c": "r"}, cluster=cluster, pdl=pdl, options={"late_copies": late})
    except KernelFault as fault:
        return [*fault.earlier, fault.hazard]
    return list(report.hazards)


FILLED = f"{fill(nbytes=1024)}"
LOADS = expect(128)
# What the kernel does: the kind, and what the message says.
FAULTS = {
    "a box outside the shared window": (
        load(MATRIX, 1024, (0, 0)), "out-of-bounds",
        "copies 128 bytes at s_full + 0 B in shared memory, not all of them in the block's shared memory",
    ),
    "bytes outside the shared window": (
        "add.u32 r5, tile, 1008;" + bulk(TO_SHARED, "[r5], [x], 64, [full]"),
        "out-of-bounds", "copies 64 bytes at s_tile + 1008 B",
    ),
    "a box at a destination off 128 bytes": (
        load(MATRIX, 16, (0, 0)), "misaligned",
        "copies 128 bytes at s_tile + 16 B in shared memory, no multiple of 128",
    ),
    "bytes at a destination off 16 bytes": (
        "add.u32 r5, tile, 8;" + bulk(TO_SHARED, "[r5], [x], 64, [full]"), "misaligned",
        "copies 64 bytes at s_tile + 8 B in shared memory, no multiple of 16",
    ),
    "bytes from a source off 16 bytes": (
        bulk(TO_SHARED, "[tile], [x+4], 64, [full]"), "misaligned",
        "copies 64 bytes at x + 4 B of 4096, no multiple of 16",
    ),
    "bytes that are no multiple of 16": (
        bulk(TO_SHARED, "[tile], [x], 60, [full]"), "bulk-copy", "size: got 60; wanted a multiple of 16 bytes",
    ),
    "a store at a negative coordinate": (
        FILLED + store(OUT, 0, (0, -1), "out"), "bulk-copy", "a store at (0, -1); wanted coordinates of at least 0",
    ),
    "a first coordinate off 16 bytes": (
        load(MATRIX, 0, (2, 0)), "bulk-copy", "a box at (2, 0); wanted a first coordinate that is a multiple of 4",
    ),
    "coordinates of another rank": (
        load(replace(MATRIX, sizes=(1, 1, 1)), 0, (0, 0, 0)), "bulk-copy", "3 coordinates; wanted 2",
    ),
    "a tensor that is larger than its array": (
        load(BEYOND, 0, (0, 14), "beyond"), "out-of-bounds", "0 B behind the end of x (4096 B)",
    ),
    "bytes behind an array": (
        bulk(TO_SHARED, "[tile], [x+4080], 32, [full]"), "out-of-bounds", "0 B behind the end of x (4096 B)",
    ),
    "a prefetch behind an array": (
        "@first cp.async.bulk.prefetch.L2.global [x+4080], 32;", "out-of-bounds", "0 B behind the end of x",
    ),
    "a store of a box to a read-only array": (
        FILLED + store(MATRIX, 0, (0, 0), "c_map"), "read-only", "writes to c, which is read-only",
    ),
    "a store of bytes to a read-only array": (
        FILLED + bulk(TO_GLOBAL, "[c], [tile], 16"), "read-only", "writes to c, which is read-only",
    ),
    "a reduction that the elements do not have": (
        FILLED + "@first cp.reduce.async.bulk.tensor.2d.global.shared::cta.and.bulk_group [halves, {0, 0}], [tile];",
        "bulk-copy", "reduction and: got elements of type f16",
    ),
    "a map that is none": (
        load(MATRIX, 0, (0, 0), "x"), "tensor-map", "tensor map at x + 0 B",
    ),
    "a map at no address": (
        "mov.u64 a3, 64;" + load(MATRIX, 0, (0, 0), "a3"), "out-of-bounds",
        "names a tensor map at the null pointer, not all of it in one buffer",
    ),
    "a map off 64 bytes": (
        load(MATRIX, 0, (0, 0), "x+32"), "misaligned", "names a tensor map at x + 32 B of 4096, no multiple of 64",
    ),
    "a barrier outside the shared window": (
        "add.u32 r5, full, 4096;" + bulk(TO_SHARED, "[tile], [x], 64, [r5]"), "out-of-bounds", "8 bytes at",
    ),
    "a multicast to a block that does not exist": (
        "mov.u16 mask, 2;" + bulk(f"{TO_SHARED}.multicast::cluster", "[tile], [x], 64, [full], mask"),
        "bulk-copy", "multicast mask: got 0x2; wanted some of the 1 lowest bits",
    ),
}  # fmt: skip


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
@pytest.mark.parametrize("what", FAULTS)
def test_what_ends_a_kernel(what: str, *, late: bool) -> None:
    body, kind, message = FAULTS[what]
    hazard = found(LOADS + body, late=late)[-1]
    assert hazard.kind == kind
    assert "thread (0, 0, 0) of block (0, 0, 0)" in hazard.message
    assert message in hazard.message
    assert hazard.instruction in hazard.message
    assert hazard.where.startswith("PTX line")


REPORTS = {
    "a barrier that was never initialised": (
        f"add.u32 r5, tile, 512; {bulk(TO_SHARED, '[tile], [x], 64, [r5]')}", "mbarrier",
        "uses byte 1536 of shared memory, where no mbarrier was initialised",
    ),
    "a copy over a live mbarrier": (
        "add.u32 r5, tile, 512; @first mbarrier.init.shared::cta.b64 [r5], 1;" + expect(1024)
        + bulk(TO_SHARED, "[tile], [x], 1024, [full]") + wait(),
        "mbarrier", "copies 1024 bytes, over a live mbarrier at s_tile + 512 B in shared memory",
    ),
    "a store of bytes that nothing was stored to": (
        fill(nbytes=64) + bulk(TO_GLOBAL, "[o], [tile], 128") + STORED, "uninitialised-shared",
        "thread (0, 0, 0) of block (0, 0, 0) copies from s_tile + 64 B in shared memory, where nothing was stored",
    ),
    "a store of a box that nothing was stored to": (
        fill(nbytes=100) + store(OUT, 0, (0, 0), "out") + STORED, "uninitialised-shared",
        "thread (0, 0, 0) of block (0, 0, 0) copies from s_tile + 100 B in shared memory, where nothing was stored",
    ),
    "a store that nobody waits for": (
        FILLED + bulk(TO_GLOBAL, "[o], [tile], 128") + COMMIT, "unwaited",
        "thread (0, 0, 0) of block (0, 0, 0) ends without cp.async.bulk.wait_group.read",
    ),
    "a load that nobody waits for": (
        expect(128) + load(MATRIX, 0, (0, 0)), "unwaited",
        "block (0, 0, 0) ends without a wait at the mbarrier at byte 2048 of its shared memory for",
    ),
    "a box beyond the tensor": (
        expect(128) + load(MATRIX, 0, (64, 0)) + wait(), "box-outside",
        "thread (0, 0, 0) of block (0, 0, 0) copies the box at (64, 0), wholly outside the tensor map at ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
@pytest.mark.parametrize("what", REPORTS)
def test_what_is_reported(what: str, *, late: bool) -> None:
    body, kind, message = REPORTS[what]
    hazards = found(body, late=late)
    assert [h.kind for h in hazards] == [kind], hazards
    assert message in hazards[0].message
    assert hazards[0].instruction in hazards[0].message


STALE = f"""
{expect(128)} {load(MATRIX, 0, (0, 0), "o")} {wait()}
"""
COPIED = """
shl.b32 r0, t, 2; cvt.u64.u32 a0, r0; add.u64 a1, a0, m; add.u64 a2, a0, o; ld.b32 r3, [a1]; st.global.b32 [a2], r3;
bar.sync 0;
"""
CHANGE = "@first tensormap.replace.tile.box_dim.global.b1024.b32 [o], 1, 2;"
ACQUIRE = "fence.proxy.tensormap::generic.acquire.gpu [o], 128;"


@pytest.mark.parametrize(
    ("change", "fence", "by"),
    [
        (CHANGE, "", f"{CHANGE!r} has changed"),
        (CHANGE, ACQUIRE, None),
        ("@first st.global.b32 [o+56], 1;", "", "an ordinary store has changed"),
        ("@first st.global.b32 [o+56], 1;", ACQUIRE, None),
    ],
)
def test_a_map_that_has_changed_since_tma_read_it_needs_a_fence(change: str, fence: str, by: str | None) -> None:
    again = f"{expect(64)} {load(MATRIX, 0, (0, 0), 'o')} {wait(1)}"
    hazards = found(f"{COPIED} {ACQUIRE} {STALE} {change} {fence} {again}")
    assert [h.kind for h in hazards] == ([] if by is None else ["tensor-map"])
    if by is not None:
        thread = "thread (0, 0, 0) of block (0, 0, 0)"
        assert f"{thread} uses the tensor map at o + 0 B of 4096, which {by}" in hazards[0].message


@pytest.mark.parametrize("value", ["0", "257"])
def test_a_value_that_a_field_cannot_hold_ends_the_kernel(value: str) -> None:
    hazard = found(COPIED + CHANGE.replace("1, 2;", f"1, {value};"))[-1]
    assert hazard.kind == "tensor-map"
    assert f"tensormap.replace.tile.box_dim: value: got {value}" in hazard.message.replace(
        "box_dim value", "box_dim: value"
    )


def test_a_copy_before_griddepcontrol_wait_is_reported() -> None:
    start = "griddepcontrol.launch_dependents;"
    copy = f"{expect(128)} {load(MATRIX, 0, (0, 0))}"
    assert not found(f"{start} griddepcontrol.wait; {copy} {wait()}", pdl=True)
    for early in (copy, f"{expect(64)} {bulk(TO_SHARED, '[tile], [x], 64, [full]')}"):
        hazards = found(f"{start} {early} griddepcontrol.wait; {wait()}", pdl=True)
        assert [h.kind for h in hazards] == ["dependent-launch"]
        assert "thread (0, 0, 0) of block (0, 0, 0) copies" in hazards[0].message


EXIT = """
.reg .b32 rank; mov.u32 rank, %cluster_ctarank; setp.eq.u32 p, rank, 1;
mov.u16 mask, 3;
@first mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], 64;
{sync}
@p bra {target};
{copy}
OWN: {wait}
LAST: {end}
"""


def test_a_block_that_leaves_while_a_multicast_comes_is_reported() -> None:
    copy = bulk(f"{TO_SHARED}.multicast::cluster", "[tile], [x], 64, [full], mask")
    right = EXIT.format(sync=CLUSTER_SYNC, target="OWN", copy=copy, wait=wait(), end=CLUSTER_SYNC)
    assert not found(right, cluster=2)
    wrong = EXIT.format(sync=CLUSTER_SYNC, target="LAST", copy=copy, wait=wait(), end="")
    assert "cluster" in {h.kind for h in found(wrong, cluster=2)}


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
def test_a_source_in_shared_memory_is_read_in_the_async_proxy(*, late: bool) -> None:
    body = f"""
.reg .b32 other; mov.u32 other, %cluster_ctarank; xor.b32 other, other, 1;
shl.b32 r0, t, 2; add.u32 r1, tile, r0; st.shared.b32 [r1], t;
FENCE {expect(128)} {CLUSTER_SYNC}
add.u32 r5, tile, 256; mapa.shared::cluster.u32 r6, r5, other; mapa.shared::cluster.u32 r7, full, other;
{bulk(BETWEEN, "[r6], [tile], 128, [r7]")}
{wait()} {CLUSTER_SYNC}
"""
    assert not found(body.replace("FENCE", "fence.proxy.async;"), cluster=2, late=late)
    hazards = found(body.replace("FENCE", ""), cluster=2, late=late)
    assert {h.kind for h in hazards} == {"missing-proxy-fence"}
    unset = found(
        body.replace("FENCE", "fence.proxy.async;").replace("[tile], 128", "[tile], 192"), cluster=2, late=late
    )
    assert "uninitialised-shared" in {h.kind for h in unset}


def test_a_copy_to_one_block_may_not_name_the_barrier_of_another() -> None:
    body = f"""
mapa.shared::cluster.u32 r7, full, 1;
{bulk(TO_SHARED, "[tile], [x], 64, [r7]")}
"""
    hazard = found(body, cluster=2)[-1]
    assert hazard.kind == "bulk-copy"
    assert "copies to one block and names an mbarrier of another" in hazard.message


@pytest.mark.parametrize(
    ("instruction", "why"),
    [
        ("cp.async.bulk.tensor.2d.{TO_SHARED}.im2col [tile], [m, {{0, 0}}], [full];", "im2col"),
        ("cp.async.bulk.tensor.3d.{TO_SHARED} [tile], [m, {{0, 0}}], [full];", "its coordinates"),
        ("cp.async.bulk.shared::cluster.global.bulk_group [tile], [x], 64;", "its completion mechanism"),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.min.f32 [x], [tile], 64;", "f32 with .min"),
        ("cp.reduce.async.bulk.{BETWEEN}.add.f32 [tile], [tile], 64, [full];", "f32 with .add"),
        ("cp.async.bulk.wait_group r0;", "a count that is no literal"),
    ],
)  # fmt: skip
def test_forms_that_are_not_emulated_are_named(instruction: str, why: str) -> None:
    with pytest.raises(EmulationError, match=why):
        found(instruction.format(TO_SHARED=TO_SHARED, BETWEEN=BETWEEN))


def test_a_race_with_what_a_copy_reads_names_both() -> None:
    body = f"{fill(nbytes=128)} {bulk(TO_GLOBAL, '[o], [tile], 128')} {COMMIT} @first st.shared.b32 [tile], 1;"
    body += "@first cp.async.bulk.wait_group.read 0;"
    (hazard,) = found(body)
    assert hazard.kind == "race"
    assert "cp.async.bulk.global" in hazard.message
    assert "st.shared.b32" in hazard.message
