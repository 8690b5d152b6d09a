"""Bulk copies in kernels: boxes and bytes, loads, stores and reductions, multicast, groups, and when they act."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from matmill.launch import Pointer, TensorMap
from matmill.tensor_map import ELEMENTS, decode, encode
from support.bulk_ptx import (
    BETWEEN,
    CLUSTER_SYNC,
    COMMIT,
    FENCE,
    STORED,
    TILE,
    TO_GLOBAL,
    TO_SHARED,
    bulk,
    dump,
    emulate,
    expect,
    fill,
    load,
    store,
    wait,
)  # fmt: skip
from support.examples import examples
from support.ptx_tools import Options
from support.tensor_maps import START, box_bytes, load_one, shared_bytes, small_maps, span, store_one

BOTH = pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
Bytes = NDArray[np.uint8]


def noise(nbytes: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def matrix(rows: int = 16, columns: int = 64, **fields: Any) -> TensorMap:
    """Return boxes of 4 x 8 words of a matrix in the array x."""
    return replace(TensorMap(Pointer("x", 0), "uint32", (columns, rows), (4 * columns,), (8, 4)), **fields)


@st.composite
def programs(draw: st.DrawFn) -> tuple[TensorMap, list[tuple[str, tuple[int, ...], int]]]:
    """Return a map, and copies of its boxes: the verb, the coordinates, and the byte of the tile."""
    verbs = ["load", "store"]
    tensor = draw(small_maps())
    if tensor.element in {"uint32", "int32", "uint64"}:
        verbs.append("add")
    across = 16 // ELEMENTS[tensor.element].itemsize
    steps = []
    for _ in range(draw(st.integers(1, 5))):
        verb = draw(st.sampled_from(verbs))
        least = -3 if verb == "load" else 0
        outer = [draw(st.integers(least, size + 1)) for size in tensor.sizes[1:]]
        steps.append((verb, (across * draw(st.integers(least, 3)), *outer), 128 * draw(st.integers(0, 4))))
    return tensor, steps


@given(program=programs(), schedule=st.integers(0, 3), seed=st.integers(0, 99))
@examples(20)
def test_programs_of_boxes_do_what_single_elements_do(
    program: tuple[TensorMap, list[tuple[str, tuple[int, ...], int]]], schedule: int, seed: int
) -> None:
    tensor, steps = program
    size = (4 * 128 + shared_bytes(tensor) + 127) // 128 * 128
    memory, tile = noise(span(tensor), seed), noise(size, seed + 1)
    wanted_memory, wanted_tile = memory.copy(), tile.copy()
    body, phase = fill("s", size), 0
    for verb, at, byte in steps:
        if verb == "load":
            body += f"bar.sync 0; {expect(box_bytes(tensor))} {load(tensor, byte, at)} {wait(phase)}"
            load_one(wanted_memory, wanted_tile, tensor, at, byte)
            phase ^= 1
        else:
            body += f"{FENCE} {store(tensor, byte, at, add=verb == 'add')} {STORED}"
            word = {"add": f"u{ELEMENTS[tensor.element].itemsize}"}.get(verb, "")
            combine: Callable[[Any, Any], Any] = (lambda old, new: old + new) if word else (lambda _old, new: new)
            with np.errstate(over="ignore"):
                store_one(wanted_memory, wanted_tile, tensor, at, byte, combine=combine, word=word)
    here = replace(tensor, pointer=Pointer("x", tensor.pointer.address - START))
    for late in (False, True):
        x, o = memory.copy(), np.zeros(size, np.uint8)
        options: Options = {"late_copies": late, "schedule": schedule}
        report = emulate(
            body + dump("o", size), {"x": x, "s": tile, "o": o}, {"m": here}, tile=size, threads=256, options=options
        )
        assert {h.kind for h in report.hazards} <= {"box-outside"}, report.hazards
        np.testing.assert_array_equal(x, wanted_memory)
        np.testing.assert_array_equal(o, wanted_tile)


@BOTH
@pytest.mark.parametrize("schedule", [0, 1])
def test_a_multicast_reaches_the_blocks_of_its_mask_and_their_barriers(schedule: int, *, late: bool) -> None:
    # Blocks 0 and 2 each load 128 bytes for the blocks 0, 2 and 3.
    tensor = matrix()
    body = f"""
.reg .b32 rank; .reg .pred issues, gets;
mov.u32 rank, %cluster_ctarank; setp.ne.u32 gets, rank, 1; and.b32 r0, rank, 1; setp.eq.and.u32 issues, r0, 0, first;
mov.u16 mask, 13;
{fill()}
{CLUSTER_SYNC}
and.pred p, gets, first;
@p mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], 256;
shl.b32 r5, rank, 2; shl.b32 r4, rank, 6; add.u32 r4, tile, r4;
@issues cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint
  [r4], [m, {{r5, 1}}], [full], mask, 0x12F0000000000000;
@!gets bra OUT;
{wait()}
OUT:
mov.u32 r5, %ctaid.x; shl.b32 r5, r5, 10; cvt.u64.u32 a1, r5; add.u64 o, o, a1;
{dump()}
{CLUSTER_SYNC}
"""
    x, o = noise(4096), np.zeros((8, TILE), np.uint8)
    report = emulate(
        body, {"x": x, "o": o}, {"m": matrix(box=(8, 4))}, cluster=4, blocks=2,
        options={"late_copies": late, "schedule": schedule},
    )  # fmt: skip
    assert report.ok, report.hazards
    wanted = x[:TILE].copy()
    for rank in (0, 2):
        load_one(x, wanted, replace(tensor, pointer=Pointer("", START)), (4 * rank, 1), 128 * (rank // 2))
    for block, got in enumerate(o):
        np.testing.assert_array_equal(got, x[:TILE] if block % 4 == 1 else wanted)
    assert report.counters.bulk_loads == 4
    assert report.counters.bulk_load_wavefronts == 4 * 3
    assert report.counters.bulk_load_bytes == 4 * 128


@BOTH
def test_each_of_32_lanes_issues_a_copy_of_its_own(*, late: bool) -> None:
    # Lane t loads chunk t to the place of chunk 31 - t, and stores it in a group of its own.
    body = f"""
{expect(512)}
shl.b32 r0, t, 4; sub.u32 r1, 496, r0; add.u32 r1, tile, r1; cvt.u64.u32 a0, r0; add.u64 a1, x, a0;
bar.sync 0;
cp.async.bulk.{TO_SHARED} [r1], [a1], 16, [full];
{wait()}
add.u64 a1, o, a0; add.u32 r1, tile, r0;
cp.async.bulk.{TO_GLOBAL} [a1], [r1], 16;
cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
"""
    x, o = noise(512), np.zeros(512, np.uint8)
    report = emulate(body, {"x": x, "o": o}, options={"late_copies": late})
    np.testing.assert_array_equal(o.reshape(32, 16), x.reshape(32, 16)[::-1])
    assert not report.hazards
    assert (report.counters.bulk_loads, report.counters.bulk_stores) == (32, 32)


@BOTH
def test_lanes_may_name_different_maps(*, late: bool) -> None:
    body = f"""
{expect(256)}
.reg .pred odd; and.b32 r0, t, 1; setp.ne.u32 odd, r0, 0; setp.lt.u32 p, t, 2;
selp.b64 a0, n, m, odd; shl.b32 r1, t, 7; add.u32 r1, tile, r1;
bar.sync 0;
@p cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [r1], [a0, {{0, t}}], [full];
{wait()}
{dump(nbytes=256)}
"""
    x, y, o = (np.arange(1024, dtype=np.uint32), np.arange(1024, dtype=np.uint32) + 9000, np.zeros(64, np.uint32))
    maps = {"m": matrix(), "n": matrix(pointer=Pointer("y", 0))}
    report = emulate(body, {"x": x, "y": y, "o": o}, maps, options={"late_copies": late})
    assert report.ok, report.hazards
    np.testing.assert_array_equal(o[:32].reshape(4, 8), x.reshape(16, 64)[:4, :8])
    np.testing.assert_array_equal(o[32:].reshape(4, 8), y.reshape(16, 64)[1:5, :8])


@BOTH
def test_hints_and_prefetches_change_nothing(*, late: bool) -> None:
    tensor = matrix()
    body = f"""
prefetch.tensormap [m];
@first cp.async.bulk.prefetch.tensor.2d.L2.global.tile [m, {{0, -1}}];
@first cp.async.bulk.prefetch.L2.global.L2::cache_hint [x], 512, 0x12F0000000000000;
{expect(256)} {load(tensor, 0, (0, 0), hint=True)}
add.u32 r5, tile, 128; {bulk(f"{TO_SHARED}.L2::cache_hint", "[r5], [x], 128, [full], 0x14F0000000000000")}
{wait()} {dump(nbytes=256)}
"""
    x, o = np.arange(1024, dtype=np.uint32), np.zeros(64, np.uint32)
    report = emulate(body, {"x": x, "o": o}, {"m": tensor}, options={"late_copies": late})
    assert report.ok, report.hazards
    np.testing.assert_array_equal(o[:32].reshape(4, 8), x.reshape(16, 64)[:4, :8])
    np.testing.assert_array_equal(o[32:], x[:32])
    assert report.counters.bulk_loads == 2


def _inc(old: Any, new: Any) -> Any:
    return np.where(old >= new, 0, old + 1).astype(old.dtype)


def _dec(old: Any, new: Any) -> Any:
    return np.where((old == 0) | (old > new), new, old - 1).astype(old.dtype)


COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "inc": _inc, "dec": _dec,
}  # fmt: skip
TYPES: dict[str, Any] = {
    "u32": np.uint32, "s32": np.int32, "b32": np.uint32, "u64": np.uint64, "s64": np.int64, "b64": np.uint64,
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip
# PTX ISA, "cp.reduce.async.bulk": the types of each operation.
REDUCTIONS = [
    *(("add", kind) for kind in ("u32", "s32", "u64", "f16", "bf16", "f32", "f64")),
    *((operation, kind) for operation in ("min", "max") for kind in ("u32", "s32", "u64", "s64", "f16", "bf16")),
    *((operation, kind) for operation in ("and", "or", "xor") for kind in ("b32", "b64")),
    *(("inc", "u32"), ("dec", "u32")),
]


def numbers(kind: str, seed: int) -> NDArray[Any]:
    """Return 256 bytes of a type's numbers."""
    dtype = np.dtype(TYPES[kind])
    drawn = np.random.default_rng(seed).integers(0, 200, 256 // dtype.itemsize)
    signed = kind[0] in "sf" or kind == "bf16"
    return np.asarray(drawn - 100 * signed, dtype)


@BOTH
@pytest.mark.parametrize(("operation", "kind"), REDUCTIONS)
def test_reductions_of_bytes_into_global_memory(operation: str, kind: str, *, late: bool) -> None:
    noftz = ".noftz" if kind in {"f16", "bf16"} and operation == "add" else ""
    form = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{operation}{noftz}.{kind}"
    x, o = numbers(kind, 1), numbers(kind, 2)
    wanted = COMBINE[operation](o, x)
    report = emulate(
        f"{fill(nbytes=256)} {bulk(form, '[o], [tile], 256')} {STORED}",
        {"x": x.view(np.uint8), "o": o.view(np.uint8)}, options={"late_copies": late},
    )  # fmt: skip
    assert not report.hazards
    np.testing.assert_array_equal(o, wanted)
    assert (report.counters.bulk_stores, report.counters.bulk_store_bytes) == (1, 256)


@BOTH
@pytest.mark.parametrize(
    ("operation", "kind"),
    [("add", "u32"), ("add", "s32"), ("add", "u64"), ("min", "s32"), ("max", "u32"), ("inc", "u32"), ("dec", "u32"),
     ("and", "b32"), ("or", "b32"), ("xor", "b32")],
)  # fmt: skip
def test_blocks_reduce_into_the_shared_memory_of_their_neighbours(operation: str, kind: str, *, late: bool) -> None:
    form = f"cp.reduce.async.bulk.{BETWEEN}.{operation}.{kind}"
    body = f"""
.reg .b32 rank, other; mov.u32 rank, %cluster_ctarank; xor.b32 rank, rank, 1;
mov.u32 r5, %ctaid.x; shl.b32 r5, r5, 8; cvt.u64.u32 a1, r5; add.u64 x, x, a1; add.u64 o, o, a1;
{fill(nbytes=256)} {expect(128)} {CLUSTER_SYNC}
add.u32 r5, tile, 128; mapa.shared::cluster.u32 r6, tile, rank; mapa.shared::cluster.u32 r7, full, rank;
{bulk(form, "[r6], [r5], 128, [r7]")}
{wait()} {dump(nbytes=256)} {CLUSTER_SYNC}
"""
    x = np.concatenate([numbers(kind, seed) for seed in (1, 2)]).reshape(2, -1)
    o = np.zeros_like(x)
    report = emulate(body, {"x": x.view(np.uint8), "o": o.view(np.uint8)}, cluster=2, options={"late_copies": late})
    assert report.ok, report.hazards
    half = x.shape[1] // 2
    wanted = x.copy()
    wanted[:, :half] = COMBINE[operation](x[:, :half], x[::-1, half:])
    np.testing.assert_array_equal(o, wanted)


@BOTH
@pytest.mark.parametrize("schedule", [0, 1, 2])
def test_blocks_copy_to_the_shared_memory_of_their_neighbours(schedule: int, *, late: bool) -> None:
    body = f"""
.reg .b32 rank; mov.u32 rank, %cluster_ctarank; add.u32 rank, rank, 1; and.b32 rank, rank, 3;
mov.u32 r5, %ctaid.x; shl.b32 r5, r5, 8; cvt.u64.u32 a1, r5; add.u64 x, x, a1; add.u64 o, o, a1;
{fill(nbytes=256)} {expect(256)} {CLUSTER_SYNC}
add.u32 r5, tile, 256; mapa.shared::cluster.u32 r6, r5, rank; mapa.shared::cluster.u32 r7, full, rank;
{bulk(BETWEEN, "[r6], [tile], 256, [r7]")}
{wait()} add.u32 tile, tile, 256; {dump(nbytes=256)} {CLUSTER_SYNC}
"""
    x, o = noise(1024).reshape(4, 256), np.zeros((4, 256), np.uint8)
    options: Options = {"late_copies": late, "schedule": schedule}
    report = emulate(body, {"x": x, "o": o}, cluster=4, options=options)
    assert report.ok, report.hazards
    np.testing.assert_array_equal(o, np.roll(x, 1, axis=0))


@BOTH
def test_ignored_bytes_may_be_outside_the_allocation(*, late: bool) -> None:
    # As an H200 (2026-11-23) the barrier counts ignored bytes too.
    body = f"""
sub.u64 a0, x, 16; add.u64 a0, a0, 16;
{expect(64)}
@first cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.ignore_oob [tile], [a0], 64, 3, 7, [full];
{wait()} {dump(nbytes=64)}
"""
    x, o = noise(57), np.zeros(64, np.uint8)
    report = emulate(body, {"x": x, "o": o}, options={"late_copies": late})
    assert report.ok, report.hazards
    np.testing.assert_array_equal(o[3:57], x[3:])


@pytest.mark.parametrize(
    ("waits", "late", "seen"),
    [
        ("wait_group 0", False, 3), ("wait_group 0", True, 3), ("wait_group 1", True, 2), ("wait_group 2", True, 1),
        ("wait_group 3", True, 0), ("wait_group.read 0", True, 0), ("wait_group.read 0", False, 3),
    ],
)  # fmt: skip
def test_what_stores_have_written_when_a_wait_is_over(waits: str, seen: int, *, late: bool) -> None:
    stores = "\n".join(
        f"add.u32 r5, tile, {64 * n}; {bulk(TO_GLOBAL, f'[o+{64 * n}], [r5], 64')} {COMMIT}" for n in range(3)
    )
    reads = "\n".join(f"@first ld.global.b32 r6, [o+{64 * n}]; @first st.global.b32 [y+{4 * n}], r6;" for n in range(3))
    body = f"{fill(nbytes=192)} {stores} @first cp.async.bulk.{waits}; @first st.shared.b32 [tile], 0; {reads}"
    body += "@first cp.async.bulk.wait_group.read 0;"
    x, o, y = np.full(48, 7, np.uint32), np.zeros(48, np.uint32), np.zeros(3, np.uint32)
    emulate(body, {"x": x, "o": o, "y": y}, options={"late_copies": late})
    assert y.tolist() == [7] * seen + [0] * (3 - seen)
    # What a wait has covered was read before the tile changed; what it has not, late, after.
    untouched = "read" in waits or seen > 0
    assert o.tolist() == [7 if untouched else 0] + [7] * 47


def test_a_wait_does_not_cover_what_is_not_committed() -> None:
    body = f"{fill(nbytes=64)} {bulk(TO_GLOBAL, '[o], [tile], 64')} @first cp.async.bulk.wait_group 0;"
    body += "@first ld.global.b32 r6, [o]; @first st.global.b32 [y], r6;"
    x, o, y = np.full(16, 7, np.uint32), np.zeros(16, np.uint32), np.zeros(1, np.uint32)
    report = emulate(body, {"x": x, "o": o, "y": y}, options={"late_copies": True})
    assert y[0] == 0
    assert [h.kind for h in report.hazards] == ["unwaited"]
    assert (o == 7).all()


@BOTH
def test_blocks_may_add_to_one_box_but_not_store_there(*, late: bool) -> None:
    tensor = matrix()
    for add, kinds in ((True, set()), (False, {"race"})):
        x, o = np.ones(1024, np.uint32), np.zeros(1024, np.uint32)
        body = f"{fill(nbytes=128)} {store(tensor, 0, (0, 0), add=add)} {STORED}"
        maps = {"m": replace(tensor, pointer=Pointer("o", 0))}
        report = emulate(body, {"x": x, "o": o}, maps, blocks=5, options={"late_copies": late})
        assert {h.kind for h in report.hazards} == kinds
        assert (o.reshape(16, 64)[:4, :8] == (5 if add else 1)).all()


@BOTH
@pytest.mark.parametrize("tensor", [True, False], ids=["box", "bytes"])
def test_lanes_of_a_warp_may_all_store_one_box(*, tensor: bool, late: bool) -> None:
    copy = (
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [m, {0, 0}], [r4];"
        if tensor
        else f"cp.async.bulk.{TO_GLOBAL} [o], [r4], 128;"
    )
    maps = {"m": matrix(pointer=Pointer("o", 0))} if tensor else {}
    ends = "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"

    def kinds(start: str, end: str, threads: int = 32) -> set[str]:
        x, o = np.ones(1024, np.uint32), np.zeros(1024, np.uint32)
        body = f"{fill(nbytes=1024)} mov.u32 r4, tile; {start} {copy} {end}"
        report = emulate(body, {"x": x, "o": o}, maps, threads=threads, options={"late_copies": late})
        assert (o[:8] == 1).all()
        return {hazard.kind for hazard in report.hazards}

    assert kinds("", ends) == set()
    assert kinds("shl.b32 r5, t, 9; and.b32 r5, r5, 512; add.u32 r4, tile, r5;", ends) == {"race"}
    assert kinds("", ends, threads=64) == {"race"}
    assert kinds("", "@first cp.async.bulk.commit_group; @first cp.async.bulk.wait_group 0;") == {"unwaited"}


@BOTH
def test_what_boxes_leave_between_their_rows_stays(*, late: bool) -> None:
    # Rows of 32 bytes with a swizzle of 128: of each 128 bytes 96 stay as they were, or were never written.
    tensor = matrix(swizzle=128)
    x, s, o = noise(4096), noise(512, 1), np.zeros(512, np.uint8)
    body = f"{fill('s', 512)} {expect(128)} {load(tensor, 0, (0, 0))} {wait()} {dump(nbytes=512)}"
    report = emulate(body, {"x": x, "s": s, "o": o}, {"m": tensor}, options={"late_copies": late})
    assert report.ok, report.hazards
    load_one(x, s, replace(tensor, pointer=Pointer("", START)), (0, 0), 0)
    np.testing.assert_array_equal(o, s)
    body = f"{expect(128)} {load(tensor, 0, (0, 0))} {wait()} {store(tensor, 0, (0, 0), 'n')} {STORED}"
    maps = {"m": tensor, "n": replace(tensor, pointer=Pointer("y", 0))}
    y = np.zeros(4096, np.uint8)
    report = emulate(body, {"x": x, "y": y}, maps, options={"late_copies": late})
    assert not report.hazards
    np.testing.assert_array_equal(y.reshape(16, 256)[:4, :32], x.reshape(16, 256)[:4, :32])


@BOTH
def test_stores_initialise_global_memory(*, late: bool) -> None:
    tensor = matrix(pointer=Pointer("o", 0))
    body = f"{fill(nbytes=128)} {store(tensor, 0, (0, 0))} {STORED}"
    body += "@first ld.global.b32 r3, [o]; @first st.global.b32 [x], r3;"
    x, o = np.full(1024, 7, np.uint32), np.zeros(1024, np.uint32)
    assert not emulate(body, {"x": x, "o": o}, {"m": tensor}, fresh=("o",), options={"late_copies": late}).hazards
    report = emulate(body.replace("[o];", "[o+64];"), {"x": x, "o": o}, {"m": tensor}, fresh=("o",))
    assert [h.kind for h in report.hazards] == ["uninitialised-global"]


@BOTH
@pytest.mark.parametrize("space", ["const", "global"])
def test_maps_of_modules_are_read_where_they_are(space: str, *, late: bool) -> None:
    tensor = matrix()
    # The first array that is bound to a memory has this address.
    text = ", ".join(map(str, encode(tensor, START)))
    declared = f".{space} .align 64 .b8 held[128] = {{{text}}};"
    body = f"mov.u64 a3, held; cvta.{space}.u64 a3, a3; {expect(128)} {load(tensor, 0, (8, 2), 'a3')} {wait()}"
    x, o = np.arange(1024, dtype=np.uint32), np.zeros(32, np.uint32)
    report = emulate(body + dump(nbytes=128), {"x": x, "o": o}, declarations=declared, options={"late_copies": late})
    assert report.ok, report.hazards
    np.testing.assert_array_equal(o.reshape(4, 8), x.reshape(16, 64)[2:6, 8:16])


def changes(tensor: TensorMap) -> str:
    """Return ``tensormap.replace`` of each field of the map in the tile to that of ``tensor``."""

    def put(field: str, value: object, ordinal: int | None = None, size: str = "b32") -> str:
        number = "" if ordinal is None else f", {ordinal}"
        return f"@first tensormap.replace.tile.{field}.shared::cta.b1024.{size} [tile]{number}, {value};"

    lines = [put("global_address", "x", size="b64"), put("rank", len(tensor.sizes) - 1)]
    for n, stride in enumerate(tensor.strides):
        lines.append(put("global_stride", stride, n, "b64"))
    for n, (size, box, step) in enumerate(zip(tensor.sizes, tensor.box, tensor.element_strides, strict=True)):
        lines += [put("box_dim", box, n), put("global_dim", size, n), put("element_stride", step, n)]
    lines += [put("elemtype", ELEMENTS[tensor.element].code), put("interleave_layout", 0)]
    lines += [put("swizzle_mode", {0: 0, 32: 1, 64: 2, 128: 3}[tensor.swizzle]), put("fill_mode", int(tensor.nan_fill))]
    return "\n".join(lines)


COPY_MAP = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [g], [tile], 128;"
ACQUIRE = "fence.proxy.tensormap::generic.acquire.gpu [g], 128;"
OTHER = TensorMap(Pointer("y", 64), "uint8", (32, 1, 1), (32, 32), (16, 1, 1), promotion=0)


@BOTH
@pytest.mark.parametrize(
    "tensor",
    [
        matrix(swizzle=32, element_strides=(1, 2), promotion=0),
        TensorMap(Pointer("x", 0), "float16", (64, 4, 8), (128, 512), (16, 2, 3), nan_fill=True, promotion=0),
    ],
    ids=["words", "halves"],
)
def test_a_map_is_changed_field_by_field_in_shared_memory_and_then_fenced(tensor: TensorMap, *, late: bool) -> None:
    # The map of y from parameters to the tile; then all of its fields change, it goes to g, and is used there.
    body = f"""
shl.b32 r0, t, 2; add.u32 r1, tile, r0; cvt.u64.u32 a0, r0; add.u64 a0, a0, m; ld.b32 r3, [a0];
st.shared.b32 [r1], r3; bar.sync 0;
{changes(tensor)}
bar.sync 0;
{COPY_MAP} {ACQUIRE}
{expect(box_bytes(tensor))} {load(tensor, 512, (0,) * len(tensor.sizes), "g")} {wait()}
add.u32 tile, tile, 512; {dump(nbytes=box_bytes(tensor))}
"""
    x, y, g, o = noise(4096), noise(256), np.zeros(256, np.uint8), np.zeros(box_bytes(tensor), np.uint8)
    arrays = {"x": x, "y": y, "g": g, "o": o}
    report = emulate(body, arrays, {"m": OTHER}, options={"late_copies": late})
    assert report.ok, report.hazards
    assert decode(g[:128].tobytes(), "x") == replace(tensor, pointer=Pointer("x", START))
    wanted = np.zeros(512 + shared_bytes(tensor), np.uint8)
    load_one(x, wanted, replace(tensor, pointer=Pointer("x", START)), (0,) * len(tensor.sizes), 512)
    np.testing.assert_array_equal(o, wanted[512 : 512 + len(o)])


@BOTH
def test_a_wait_that_only_tests_ends_when_a_late_copy_lands(*, late: bool) -> None:
    body = f"""
{expect(64)} {bulk(TO_SHARED, "[tile], [x], 64, [full]")}
TEST: mbarrier.test_wait.parity.shared::cta.b64 done, [full], 0; @!done bra TEST;
{dump(nbytes=64)}
"""
    x, o = noise(64), np.zeros(64, np.uint8)
    report = emulate(body, {"x": x, "o": o}, options={"late_copies": late})
    assert report.ok, report.hazards
    np.testing.assert_array_equal(o, x)


def test_counts_of_known_shapes() -> None:
    # Rows of 32 bytes that start 16 bytes off a sector touch two sectors; 3 of 4 rows are inside.
    tensor = matrix()
    body = f"{expect(128 + 80)} {load(tensor, 0, (4, 13))}"
    body += f"add.u32 r5, tile, 128; {bulk(TO_SHARED, '[r5], [x+16], 80, [full]')}"
    body += f"{wait()} {store(tensor, 0, (8, 0), 'n')} {bulk(TO_GLOBAL, '[y+2048], [tile], 208')} {STORED}"
    x, y = noise(4096), np.zeros(4096, np.uint8)
    maps = {"m": tensor, "n": replace(tensor, pointer=Pointer("y", 0))}
    counters = emulate(body, {"x": x, "y": y}, maps).counters
    assert (counters.bulk_loads, counters.bulk_load_bytes) == (2, 3 * 32 + 80)
    assert (counters.bulk_load_sectors, counters.bulk_load_wavefronts) == (3 * 2 + 3, 1 + 1)
    assert (counters.bulk_stores, counters.bulk_store_bytes) == (2, 128 + 208)
    assert (counters.bulk_store_sectors, counters.bulk_store_wavefronts) == (4 + 7, 1 + 2)
    assert (counters.mbarrier_waits, counters.mbarrier_arrivals) == (1, 1)
