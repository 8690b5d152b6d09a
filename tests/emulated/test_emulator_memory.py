"""Memory: binding, addresses, every width and space, faults with their lines, hazards, asynchronous copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from matmill.emulator import Hazard, KernelFault, Memory, Report, run
from matmill.errors import ArgumentError, DTypeError, ReadOnlyError
from matmill.launch import Argument, Launch, Pointer
from support.ptx_tools import Array, Options, compile_ptx, entry, launch

COPY = """extern "C" __global__ void k(const float* a, float* o, int n, int sa, int so) {
  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) o[i * so] = a[i * sa]; }"""


def run_copy(a: Array, o: Array, access: str = "w") -> Report:
    memory = Memory()
    n = np.int32(a.size)
    steps = [np.int32(x.strides[0] // x.itemsize) for x in (a, o)]
    arguments: tuple[Argument, ...] = (memory.bind("A", a, access="r"), memory.bind("O", o, access=access), n, *steps)
    return run(compile_ptx(COPY), Launch("copy", "k", (3, 1, 1), (64, 1, 1), arguments), memory)


@pytest.mark.parametrize("step", [1, 2, -1, -3])
def test_views_of_any_stride_are_read_and_written_in_place(step: int) -> None:
    base = np.arange(600, dtype=np.float32)
    a = base[::step][:150]
    target = np.full(600, -1.0, np.float32)
    out = target[::step][:150]
    report = run_copy(a, out)
    np.testing.assert_array_equal(out, a)
    assert (target == -1.0).sum() == 450
    assert report.ok
    assert report.counters.global_load_bytes == 600


def test_addresses_do_not_depend_on_the_host() -> None:
    base = np.zeros(1000, np.float32)
    pointers = []
    for offset in (0, 1, 7):
        memory = Memory()
        pointers.append([memory.bind(name, base[offset : offset + 100], access="rw") for name in "AB"])
    assert pointers[0] == pointers[1] == pointers[2]
    assert all(p.address % 512 == 0 for p in pointers[0])
    assert pointers[0][1].address - pointers[0][0].address > 400
    reverse = Memory().bind("R", base[::-1], access="r")
    assert reverse.address % 512 == 3996 % 512


def test_empty_arrays_null_pointers_and_scalars_can_be_bound() -> None:
    memory = Memory()
    assert memory.bind("none", None, access="r") == Pointer("none", 0)
    assert memory.bind("empty", np.zeros((0, 4)), access="rw").address > 0
    scalar = np.array(3.0, np.float32)
    pointer = memory.bind("scalar", scalar, access="rw")
    body = "st.global.f32 [o], 0f40E00000;"
    run(entry(body, ["o"]), Launch("k", "k", (1, 1, 1), (1, 1, 1), (pointer,)), memory)
    assert scalar == 7.0


def test_bad_bindings_are_refused() -> None:
    memory = Memory()
    with pytest.raises(ArgumentError, match="access"):
        memory.bind("A", np.zeros(1), access="x")
    with pytest.raises(DTypeError, match="A: got dtype object"):
        memory.bind("A", np.array([None]), access="r")
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    with pytest.raises(ReadOnlyError, match="A: got a read-only array"):
        memory.bind("A", frozen, access="rw")
    assert memory.bind("A", frozen, access="r").address


def fault_of(ptx: str, arrays: dict[str, Array], *values: np.generic, block: int = 32, shared: int = 0) -> Hazard:
    with pytest.raises(KernelFault) as caught:
        launch(ptx, arrays, *values, block=(block, 1, 1), shared=shared)
    return caught.value.hazard


ACCESS = """extern "C" __global__ void k(int* a, int i) {
  if (threadIdx.x == 3)
    a[i] = 1;
}"""


@pytest.mark.parametrize(
    ("index", "where"),
    [
        (10, "0 B behind the end of a (40 B)"),
        (1000, "3960 B behind the end of a (40 B)"),
        (-1, "4 B before a (40 B)"),
        (1 << 30, "no buffer"),
    ],
)
def test_out_of_bounds_names_buffer_thread_and_line(index: int, where: str) -> None:
    hazard = fault_of(compile_ptx(ACCESS), {"a": np.zeros(10, np.int32)}, np.int32(index), block=64)
    assert hazard.kind == "out-of-bounds"
    assert hazard.where == "test.cu:3"
    assert where in hazard.message
    assert "thread (3, 0, 0) of block (0, 0, 0) writes 4 bytes" in hazard.message
    assert hazard.instruction.startswith("st.global")


def test_null_pointers_fault() -> None:
    memory = Memory()
    null = memory.bind("a", None, access="rw")
    with pytest.raises(KernelFault, match="the null pointer"):
        run(compile_ptx(ACCESS), Launch("k", "k", (1, 1, 1), (32, 1, 1), (null, np.int32(0))), memory)


def test_guard_gaps_keep_buffers_apart() -> None:
    arrays = {"a": np.zeros(100, np.int32), "b": np.zeros(100, np.int32)}
    source = 'extern "C" __global__ void k(int* a, int* b, int i) { a[i] = 1; }'
    for index in (100, 101, 130, 200, 5000, 100_000):
        assert fault_of(compile_ptx(source), arrays, np.int32(index)).kind == "out-of-bounds"
    assert not arrays["b"].any()


def test_misaligned_accesses_fault() -> None:
    source = 'extern "C" __global__ void k(float* a, int i) { *(float4*)(a + i) = make_float4(1, 2, 3, 4); }'
    hazard = fault_of(compile_ptx(source), {"a": np.zeros(100, np.float32)}, np.int32(3))
    assert hazard.kind == "misaligned"
    assert "a + 12 B of 400, which is no multiple of 16" in hazard.message


def test_read_only_buffers_stay_as_they_are() -> None:
    memory = Memory()
    a = np.zeros(10, np.int32)
    pointer = memory.bind("A", a, access="r")
    with pytest.raises(KernelFault, match="A \\+ 0 B of 40, which is read-only") as caught:
        run(compile_ptx(ACCESS), Launch("k", "k", (1, 1, 1), (32, 1, 1), (pointer, np.int32(0))), memory)
    assert caught.value.hazard.kind == "read-only"
    assert not a.any()


def test_shared_memory_has_bounds_too() -> None:
    source = """extern "C" __global__ void k(int* o, int i) {
      extern __shared__ int s[]; s[threadIdx.x + i] = 1; o[0] = s[i]; }"""
    assert launch(
        compile_ptx(source), {"o": np.zeros(1, np.int32)}, np.int32(0), shared=128, options={"races": False}
    ).ok
    hazard = fault_of(compile_ptx(source), {"o": np.zeros(1, np.int32)}, np.int32(1), shared=128)
    assert hazard.kind == "out-of-bounds"
    assert "byte 128 of 128 B of shared memory" in hazard.message
    assert fault_of(compile_ptx(source), {"o": np.zeros(1, np.int32)}, np.int32(-1), shared=128).kind == "out-of-bounds"


def test_uninitialised_shared_reads_are_collected_once_per_instruction() -> None:
    source = """extern "C" __global__ void k(int* o) { __shared__ int s[64]; int t = threadIdx.x; if (t < 40) s[t] = t;
      __syncthreads();
      int v = 0; for (int i = 0; i < 3; i++) v += s[(t + i) % 64];
      o[t] = v; }"""
    report = launch(compile_ptx(source, "--restrict"), {"o": np.zeros(64, np.int32)}, block=(64, 1, 1))
    assert {(h.kind, h.where) for h in report.hazards} == {("uninitialised-shared", "test.cu:3")}
    assert 1 <= len(report.hazards) <= 3
    assert "that nothing was stored to" in report.hazards[0].message
    filled = source.replace("if (t < 40) s[t] = t;", "s[t] = t;")
    assert launch(compile_ptx(filled), {"o": np.zeros(64, np.int32)}, block=(64, 1, 1)).ok


def test_every_width_and_sign_loads_and_stores() -> None:
    rng = np.random.default_rng(3)
    data = rng.integers(0, 256, 32 * 16, dtype=np.uint8)
    body = """
    .reg .b32 t, x; .reg .b64 at, to, v, w; .reg .b16 h; .reg .f32 f<4>; mov.u32 t, %tid.x;
    mad.wide.u32 at, t, 16, a; mad.wide.u32 to, t, 64, o;
    ld.global.u8 x, [at+1]; st.global.u32 [to], x; ld.global.s8 x, [at+1]; st.global.u32 [to+4], x;
    ld.global.u16 x, [at+2]; st.global.u32 [to+8], x; ld.global.s16 v, [at+2]; st.global.u64 [to+16], v;
    ld.global.s32 v, [at+4]; st.global.u64 [to+24], v; ld.global.u32 v, [at+4]; st.global.u64 [to+32], v;
    ld.global.nc.L1::no_allocate.v2.u64 {v, w}, [at]; st.global.cg.v2.b64 [to+48], {w, v};
    ld.volatile.global.b16 h, [at+6]; st.global.u8 [to+12], h;
    """
    out = np.zeros((32, 64), np.uint8)
    launch(entry(body, ["a", "o"]), {"a": data, "o": out})
    rows = data.reshape(32, 16)
    views = out.view(np.uint32)
    np.testing.assert_array_equal(views[:, 0], rows[:, 1])
    np.testing.assert_array_equal(views[:, 1].view(np.int32), rows[:, 1].view(np.int8))
    np.testing.assert_array_equal(views[:, 2], rows.view(np.uint16)[:, 1])
    np.testing.assert_array_equal(out.view(np.int64)[:, 2], rows.view(np.int16)[:, 1])
    np.testing.assert_array_equal(out.view(np.int64)[:, 3], rows.view(np.int32)[:, 1])
    np.testing.assert_array_equal(out.view(np.int64)[:, 4], rows.view(np.uint32)[:, 1])
    np.testing.assert_array_equal(out[:, 48:56], rows[:, 8:])
    np.testing.assert_array_equal(out[:, 56:], rows[:, :8])
    np.testing.assert_array_equal(out[:, 12], rows[:, 6])


VECTORS = """
struct Args { const float4* a; float4* o; short k[3]; float scale; };
extern "C" __global__ void k(const __grid_constant__ Args g, int which) {
  __shared__ float4 s[64]; float local[8]; int t = threadIdx.x;
  s[t] = g.a[t]; __syncthreads();
  float4 v = s[63 - t];
  for (int i = 0; i < 8; i++) local[(i * which) & 7] = v.x * i + g.k[i % 3];
  float x = local[(t + which) & 7] * g.scale;
  float2* half = (float2*)&s[t]; __syncthreads(); half[1] = make_float2(x, v.w); __syncthreads();
  g.o[t] = s[t];
}
"""


def test_structs_vectors_and_local_memory() -> None:
    rng = np.random.default_rng(4)
    a, out = rng.standard_normal((64, 4)).astype(np.float32), np.zeros((64, 4), np.float32)
    memory = Memory()
    formats = ["u8", "u8", ("i2", 3), "f4"]
    layout = np.dtype(
        {"names": ["a", "o", "k", "scale"], "formats": formats, "offsets": [0, 8, 16, 24], "itemsize": 32}
    )
    args = np.zeros((), layout)
    args["a"], args["o"] = memory.bind("a", a, access="r").address, memory.bind("o", out, access="w").address
    args["k"], args["scale"] = [3, -5, 7], 0.5
    structure: np.generic = args[()]  # type: ignore[assignment] # NumPy's stubs take the scalar for an array
    report = run(compile_ptx(VECTORS), Launch("k", "k", (1, 1, 1), (64, 1, 1), (structure, np.int32(3))), memory)
    wanted = a.copy()
    for t in range(64):
        local = np.zeros(8, np.float32)
        for i in range(8):
            # One rounding: the compiler fuses the multiplication and the sum.
            local[i * 3 & 7] = float(a[63 - t, 0]) * i + [3, -5, 7][i % 3]
        wanted[t, 2:] = local[(t + 3) & 7] * np.float32(0.5), a[63 - t, 3]
    np.testing.assert_allclose(out, wanted, rtol=1e-6)
    assert report.ok


GENERIC = """
__device__ int table[4] = {10, 20, 30, 40}; __constant__ float factor[2] = {2.5f, -1.0f};
__device__ int* cell = table + 2;
extern "C" __global__ void k(int* a, int* o) {
  __shared__ int s[32]; int local[2] = {5, 6}; int t = threadIdx.x; s[t] = 100 + t; __syncwarp();
  int* p = t % 4 == 0 ? a + t : t % 4 == 1 ? s + t : t % 4 == 2 ? local + t / 2 % 2 : table + t / 8;
  o[t] = *p * 10 + (__isShared(p) ? 1 : __isGlobal(p) ? 2 : 3); if (t == 0) *cell += (int)factor[1];
  __syncwarp(); if (t == 31) o[31] = table[2];
}
"""


def test_generic_addresses_reach_all_spaces_at_once() -> None:
    a, out = np.arange(32, dtype=np.int32), np.zeros(32, np.int32)
    launch(compile_ptx(GENERIC), {"a": a, "o": out}, options={"races": False})
    for t in range(31):
        wanted = [t * 10 + 2, (100 + t) * 10 + 1, (5 + t // 2 % 2) * 10 + 3, (t // 8 + 1) * 100 + 2][t % 4]
        assert out[t] == wanted, t
    assert out[31] == 29


PIPELINE = """
#define COPY(stage) asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" \
  :: "r"((unsigned)__cvta_generic_to_shared(&s[(stage) % 3][4 * t])), "l"(a + (stage) * 256 + 4 * t) : "memory"); \
  asm volatile("cp.async.commit_group;" ::: "memory");
extern "C" __global__ void k(const float* a, float* o, int n) {
  __shared__ __align__(16) float s[3][256]; int t = threadIdx.x; float sum[4] = {};
  COPY(0) COPY(1)
  for (int i = 0; i < n; i++) {
    if (i + 1 < n) asm volatile("cp.async.wait_group ALLOWED;" ::: "memory");
    else asm volatile("cp.async.wait_all;" ::: "memory");
    BARRIER
    for (int j = 0; j < 4; j++) sum[j] += s[i % 3][(4 * t + j + SHIFT) % 256];
    if (i + 2 < n) { COPY(i + 2) }
  }
  for (int j = 0; j < 4; j++) o[4 * t + j] = sum[j];
}
"""


def pipeline(allowed: int, barrier: str, shift: int = 4, options: Options | None = None) -> tuple[bool, Report]:
    """Sum six stages; each thread reads what a neighbour copied (shift 4) or what it copied itself (shift 0)."""
    a = np.arange(256 * 6, dtype=np.float32)
    out = np.zeros(256, np.float32)
    source = PIPELINE.replace("ALLOWED", str(allowed)).replace("BARRIER", barrier).replace("SHIFT", str(shift))
    report = launch(compile_ptx(source), {"a": a, "o": out}, np.int32(6), block=(64, 1, 1), options=options)
    return bool(np.array_equal(out, np.roll(a.reshape(6, 256).sum(axis=0), -shift))), report


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("schedule", [0, 1, 2])
def test_a_right_pipeline_is_right_early_and_late(schedule: int, *, late: bool) -> None:
    right, report = pipeline(1, "__syncthreads();", options={"late_copies": late, "schedule": schedule})
    assert right
    assert report.ok, report.hazards
    assert report.counters.cp_async_requests == 12
    assert report.counters.cp_async_global_requests == 12
    assert report.counters.cp_async_sectors == 12 * 16
    assert report.counters.nsight_names()["l1tex__t_sectors_pipe_lsu_mem_global_op_ld"] == 12 * 16
    assert report.counters.cp_async_bytes == 12 * 512


@pytest.mark.parametrize(("shift", "kind"), [(0, "missing-wait"), (4, "race")])
def test_waiting_for_too_few_copies_shows_late_and_in_the_race_report(shift: int, kind: str) -> None:
    right, report = pipeline(2, "__syncthreads();", shift)
    assert right, "copies that land at once hide the missing wait"
    assert {h.kind for h in report.hazards} == {kind}
    right, _ = pipeline(2, "__syncthreads();", shift, options={"late_copies": True, "races": False})
    assert not right


def test_a_wait_without_a_barrier_covers_own_copies_alone() -> None:
    right, report = pipeline(1, "", 0, options={"late_copies": True})
    assert right
    assert report.ok, report.hazards
    _, report = pipeline(1, "", 4)
    assert {h.kind for h in report.hazards} == {"race"}


@pytest.mark.parametrize("late", [False, True])
def test_short_copies_fill_with_zeros(*, late: bool) -> None:
    body = """
    .reg .b32 t, size, at, x; .reg .b64 from, to; .reg .pred p;
    mov.u32 t, %tid.x; mov.u32 at, s; mad.lo.u32 at, t, 16, at; mad.wide.u32 from, t, 16, a; mad.wide.u32 to, t, 4, o;
    rem.u32 size, t, 17; min.u32 size, size, 16; setp.eq.u32 p, t, 20;
    cp.async.cg.shared.global [at], [from], 16, size; cp.async.ca.shared.global [at], [from], 4, p;
    cp.async.wait_all; bar.sync 0;
    ld.shared.u8 x, [at+5]; st.global.u32 [to], x; ld.shared.u8 x, [at+1]; st.global.u32 [to+128], x;
    """
    data = np.arange(1, 513).astype(np.uint8)
    out = np.zeros((2, 32), np.uint32)
    report = launch(
        entry(body, ["a", "o"], ".shared .align 16 .b8 s[512];"), {"a": data, "o": out}, options={"late_copies": late}
    )
    sizes = np.arange(32) % 17
    np.testing.assert_array_equal(out[0], np.where(sizes > 5, data.reshape(32, 16)[:, 5], 0))
    np.testing.assert_array_equal(out[1], np.where(np.arange(32) == 20, 0, data.reshape(32, 16)[:, 1]))
    assert not [h for h in report.hazards if h.kind == "uninitialised-shared"]


def test_copies_out_of_bounds_fault() -> None:
    body = """.reg .b32 t, at; .reg .b64 from; mov.u32 t, %tid.x; mov.u32 at, s; mad.lo.u32 at, t, 16, at;
    mad.wide.u32 from, t, 16, a; cp.async.cg.shared.global [at], [from], 16; cp.async.wait_all;"""
    with pytest.raises(
        KernelFault, match=r"thread \(31, 0, 0\) of block \(0, 0, 0\) copies 16 bytes at 0 B behind the end of a"
    ):
        launch(entry(body, ["a"], ".shared .align 16 .b8 s[512];"), {"a": np.zeros(496, np.uint8)})


def test_counts_follow_the_addresses() -> None:
    source = """extern "C" __global__ void k(const float* a, float* o) { __shared__ float s[1056]; int t = threadIdx.x;
      s[t * 32] = a[t];
      s[t * 33] = a[t * 2];
      __syncwarp();
      o[t] = s[32 * 31] + s[t * 33]; }"""
    arrays = {"a": np.zeros(64, np.float32), "o": np.zeros(32, np.float32)}
    report = launch(compile_ptx(source), arrays, options={"races": False})
    conflicted, padded = report.by_line["test.cu:2"], report.by_line["test.cu:3"]
    assert (conflicted.shared_store_wavefronts, conflicted.shared_store_wavefronts_ideal) == (32, 1)
    assert conflicted.bank_conflicts == 31
    assert (padded.shared_store_wavefronts, padded.bank_conflicts) == (1, 0)
    assert (conflicted.global_load_sectors, padded.global_load_sectors) == (4, 8)
    assert report.counters.global_load_requests == 2
    assert report.counters.shared_load_requests == 2
    assert report.counters.shared_load_wavefronts == 2
    assert report.counters.fadd == 32
    names = report.counters.nsight_names()
    assert names["l1tex__t_sectors_pipe_lsu_mem_global_op_ld"] == 12
    assert names["l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st"] == 31
    assert names["smsp__sass_thread_inst_executed_op_fadd_pred_on"] == 32
    assert sum(line.instructions for line in report.by_line.values()) == report.counters.instructions


def test_counters_and_results_do_not_depend_on_how_the_run_is_cut() -> None:
    rng = np.random.default_rng(5)
    a = rng.standard_normal(20_000).astype(np.float32)
    source = """extern "C" __global__ void k(const float* a, float* o, int n) {
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      if (i < n) { float v = a[i]; for (int j = 0; j < i % 3; j++) v = v * v + a[(i * 7 + j) % n]; o[i] = v; } }"""
    result = []
    cuts: list[Options] = [{}, {"threads": 2, "races": False}, {"schedule": 3}]
    for options in cuts:
        out = np.zeros_like(a)
        report = launch(
            compile_ptx(source),
            {"a": a, "o": out},
            np.int32(a.size),
            grid=(79, 1, 1),
            block=(256, 1, 1),
            options=options,
        )
        result.append((out.tobytes(), report.counters))
    assert result[0] == result[1]
    assert result[0][0] == result[2][0]
    assert result[0][1].ffma == result[2][1].ffma


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"entry": "nope"}, "entry: got 'nope'; wanted one of k"),
        ({"args": ()}, "launch.args: got 0 values; wanted 2"),
        ({"args": (Pointer("a", 1 << 36), np.int64(1))}, r"launch.args\[1\]: got 8 bytes"),
        ({"cluster": (2, 1, 1)}, r"launch.cluster: got \(2, 1, 1\) in a grid of"),
    ],
)
def test_launches_that_do_not_fit_are_refused(change: dict[str, Any], match: str) -> None:
    plain: dict[str, Any] = {
        "kernel": "k", "entry": "k", "grid": (1, 1, 1), "block": (32, 1, 1), "args": (Pointer("a", 0), np.int32(1)),
    }  # fmt: skip
    with pytest.raises(ArgumentError, match=match):
        run(compile_ptx(ACCESS), Launch(**{**plain, **change}), Memory())
