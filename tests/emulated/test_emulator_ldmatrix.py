"""ldmatrix, stmatrix and movmatrix: where each element goes, what it costs, and what races with it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from matmill.emulator import KernelFault, Memory, Report, run
from matmill.jit.compile import compile_ptx
from matmill.jit.source import Source
from matmill.launch import Launch

Array = NDArray[Any]
OLD = ("sm_75", "sm_80", "sm_90a")


def launched(text: str, *arrays: Array, threads: int = 64, target: str = "sm_90a", **options: Any) -> Report:
    """Run ``k`` on arrays that it may write to."""
    memory = Memory()
    pointers = tuple(memory.bind(f"x{n}", array, access="rw") for n, array in enumerate(arrays))
    ptx = compile_ptx(Source("matrix", "k", text), target)
    return run(ptx, Launch("matrix", "k", (1, 1, 1), (threads, 1, 1), pointers), memory, **options)


# ldmatrix, stmatrix, movmatrix


def moved(matrices: int, *, trans: bool, stores: bool = False) -> str:
    """Return a kernel whose warps load matrices from rows that ``at`` names (bytes), or store them there."""
    registers = ", ".join(f"%{r}" for r in range(matrices))
    name = f"{'st' if stores else 'ld'}matrix.sync.aligned.m8n8.x{matrices}{'.trans' if trans else ''}.shared.b16"
    listed = ", ".join(f'"{"" if stores else "="}r"(d[{r}])' for r in range(matrices))
    if stores:
        step = f'asm volatile("{name} [%{matrices}], {{{registers}}};" :: {listed}, "r"(p) : "memory");'
    else:
        step = f'asm volatile("{name} {{{registers}}}, [%{matrices}];" : {listed} : "r"(p) : "memory");'
    return f"""extern "C" __global__ void k(const unsigned* from, const unsigned* at, unsigned* to) {{
  __shared__ alignas(128) unsigned room[4096];
  const int t = threadIdx.x, warp = t / 32;
  for (int i = t; i < 4096; i += blockDim.x) room[i] = from[i];
  __syncthreads();
  unsigned d[{matrices}];
  const unsigned p = unsigned(__cvta_generic_to_shared(room)) + at[t];
  {f"for (int r = 0; r < {matrices}; r++) d[r] = from[t * {matrices} + r];" if stores else ""}
  {step}
  __syncthreads();
  {"for (int i = t; i < 4096; i += blockDim.x) to[i] = room[i];" if stores else ""}
  {"" if stores else f"for (int r = 0; r < {matrices}; r++) to[t * {matrices} + r] = d[r];"}
}}"""


def fragment(rows: Array, *, trans: bool) -> Array:
    """Return the register of each lane for a matrix of 8 rows of 8 16-bit elements."""
    out = np.empty((32, 2), np.uint16)
    for lane in range(32):
        for i in range(2):
            row, column = lane // 4, lane % 4 * 2 + i
            out[lane, i] = rows[column, row] if trans else rows[row, column]
    return out.view(np.uint32).reshape(-1)


MOVES = pytest.mark.parametrize(("matrices", "trans"), [(n, t) for n in (1, 2, 4) for t in (False, True)])


def rows_of_each_lane(matrices: int, seed: int, *, distinct: bool) -> Array:
    """Return a row of shared memory for each lane of two warps; lanes that give no row point far outside."""
    rng = np.random.default_rng(seed)
    rows = rng.permutation(1024)[:64] if distinct else rng.integers(0, 1024, 64)
    at = rows.astype(np.uint32) * 16
    at.reshape(2, 32)[:, 8 * matrices :] = 0x7FFFFFF1
    return at


@MOVES
@pytest.mark.parametrize("target", OLD)
def test_ldmatrix(matrices: int, target: str, *, trans: bool) -> None:
    data = np.random.default_rng(8).integers(0, 1 << 32, 4096, dtype=np.uint32)
    at = rows_of_each_lane(matrices, 9, distinct=False)
    out = np.zeros(64 * matrices, np.uint32)
    report = launched(moved(matrices, trans=trans), data, at, out, target=target)
    assert report.ok, report.hazards
    memory = data.view(np.uint16).reshape(-1, 8)
    result = out.reshape(2, 32, matrices)
    for warp in range(2):
        for m in range(matrices):
            rows = memory[at[warp * 32 + m * 8 :][:8] // 16]
            assert (result[warp, :, m] == fragment(rows, trans=trans)).all()
    counted = report.counters
    assert counted.ldmatrix_requests == 2
    assert counted.nsight_names()["smsp__inst_executed_op_ldsm"] == 2
    assert counted.nsight_names()["smsp__inst_executed_op_shared_ld"] == 0
    assert counted.shared_load_requests == 2
    assert counted.shared_load_wavefronts_ideal == 2 * matrices
    assert counted.shared_load_bytes == 2 * matrices * 128
    banks = at.reshape(2, 32)[:, : 8 * matrices].reshape(-1, 8) // 16
    busiest = [max(np.bincount(np.unique(rows) % 8)) for rows in banks]
    assert counted.shared_load_wavefronts == sum(busiest)
    assert counted.bank_conflicts == sum(busiest) - 2 * matrices + (
        counted.shared_store_wavefronts - counted.shared_store_wavefronts_ideal
    )


@MOVES
def test_stmatrix(matrices: int, *, trans: bool) -> None:
    data = np.random.default_rng(10).integers(0, 1 << 32, 4096, dtype=np.uint32)
    at = rows_of_each_lane(matrices, 11, distinct=True)
    out = np.zeros(4096, np.uint32)
    report = launched(moved(matrices, trans=trans, stores=True), data, at, out)
    assert report.ok, report.hazards
    wanted = data.copy().view(np.uint16).reshape(-1, 8)
    values = data[: 64 * matrices].reshape(2, 32, matrices)
    for warp in range(2):
        for m in range(matrices):
            halves = np.ascontiguousarray(values[warp, :, m]).view(np.uint16).reshape(8, 8)
            wanted[at[warp * 32 + m * 8 :][:8] // 16] = halves.T if trans else halves
    assert (out == wanted.reshape(-1).view(np.uint32)).all()
    assert report.counters.stmatrix_requests == 2


def test_movmatrix() -> None:
    text = """extern "C" __global__ void k(const unsigned* x, unsigned* o) {
      unsigned d;
      asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(x[threadIdx.x]));
      o[threadIdx.x] = d; }"""
    data = np.random.default_rng(12).integers(0, 1 << 32, 64, dtype=np.uint32)
    out = np.zeros(64, np.uint32)
    launched(text, data, out, target="sm_75")
    for warp in range(2):
        matrix = data.reshape(2, 32)[warp].view(np.uint16).reshape(8, 8)
        assert (out.reshape(2, 32)[warp].view(np.uint16).reshape(8, 8) == matrix.T).all()


@pytest.mark.parametrize(
    ("offset", "kind", "words"),
    [
        (8, "misaligned", "which is no multiple of 16"),
        (16384, "out-of-bounds", "reads 16 bytes at byte 16384 of 16384 B of shared memory"),
    ],
)
def test_rows_that_are_no_rows(offset: int, kind: str, words: str) -> None:
    at = np.zeros(64, np.uint32)
    at[5] = offset
    with pytest.raises(KernelFault, match=re.escape(words)) as caught:
        launched(moved(4, trans=False), np.zeros(4096, np.uint32), at, np.zeros(256, np.uint32))
    assert caught.value.hazard.kind == kind
    assert "thread (5, 0, 0)" in str(caught.value)
    assert "ldmatrix" in caught.value.hazard.instruction


def test_rows_outside_shared_memory() -> None:
    text = """extern "C" __global__ void k(unsigned* x) {
      unsigned d;
      asm volatile("ldmatrix.sync.aligned.m8n8.x1.b16 {%0}, [%1];" : "=r"(d) : "l"(x) : "memory");
      x[threadIdx.x] = d; }"""
    with pytest.raises(KernelFault, match="names a row at x0 \\+ 0 B of 256, outside shared memory"):
        launched(text, np.zeros(64, np.uint32))


def test_rows_that_nothing_was_stored_to() -> None:
    text = moved(2, trans=False).replace("i < 4096", "i < 4 * 15")
    at = np.resize(np.arange(16, dtype=np.uint32) * 16, 64)
    report = launched(text, np.zeros(4096, np.uint32), at, np.zeros(128, np.uint32))
    assert [hazard.kind for hazard in report.hazards] == ["uninitialised-shared"]
    assert "thread (15, 0, 0) of block (0, 0, 0) reads 16 bytes" in report.hazards[0].message


# Races and copies in flight

PIPELINE = """extern "C" __global__ void k(const unsigned* from, unsigned* to) {
  __shared__ alignas(128) unsigned room[512];
  const int t = threadIdx.x, lane = t % 32;
  const unsigned base = unsigned(__cvta_generic_to_shared(room));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(base + t * 16), "l"(from + t * 4) : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
  WAIT
  MEET
  unsigned d[4];
  asm volatile("ldmatrix.sync.aligned.m8n8.x4TRANS.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(base + ROW * 16) : "memory");
  AFTER
  for (int r = 0; r < 4; r++) to[t * 4 + r] = d[r];
}"""
WAIT = 'asm volatile("cp.async.wait_group 0;" ::: "memory");'
OTHER_WARP, OWN_WARP = "(t ^ 32)", "t"


def piped(
    *, wait: str = WAIT, meet: str = "__syncthreads();", row: str = OTHER_WARP, trans: str = "", after: str = ""
) -> str:
    """Return the pipeline with its synchronisation as given."""
    text = PIPELINE.replace("WAIT", wait).replace("MEET", meet).replace("ROW", row)
    return text.replace("TRANS", trans).replace("AFTER", after)


def ran(text: str, *, late: bool) -> tuple[Array, Report]:
    data = np.arange(1, 513, dtype=np.uint32)
    out = np.zeros(512, np.uint32)
    return out, launched(text, data[:256], out, late_copies=late)


LATE = pytest.mark.parametrize("late", [False, True])


@LATE
@pytest.mark.parametrize("trans", ["", ".trans"])
def test_a_pipeline_that_waits_has_no_hazards(trans: str, *, late: bool) -> None:
    _, report = ran(piped(trans=trans), late=late)
    assert report.ok, report.hazards
    _, report = ran(piped(trans=trans, row=OWN_WARP, meet="__syncwarp();"), late=late)
    assert report.ok, report.hazards


@LATE
@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("row", [OTHER_WARP, OWN_WARP])
def test_a_missing_wait_is_found(row: str, trans: str, *, late: bool) -> None:
    out, report = ran(piped(wait="", row=row, trans=trans), late=late)
    kinds = {hazard.kind for hazard in report.hazards}
    # Lanes read what other lanes copied, and within their own warp also what they copied themselves.
    assert "race" in kinds
    assert kinds <= {"race", "missing-wait", "uninitialised-shared"}
    assert all("ldmatrix" in hazard.message for hazard in report.hazards)
    right, _ = ran(piped(row=row, trans=trans), late=False)
    assert (out[:256] == right[:256]).all() != late


@LATE
def test_a_wait_for_the_wrong_group_is_found(*, late: bool) -> None:
    _, report = ran(piped(wait=WAIT.replace("group 0", "group 1")), late=late)
    assert any(hazard.kind == "race" and "copy by" in hazard.message for hazard in report.hazards)


@LATE
def test_a_missing_barrier_is_found(*, late: bool) -> None:
    _, report = ran(piped(meet=""), late=late)
    assert [hazard.kind for hazard in report.hazards] == ["race"]


def test_lanes_that_meet_nowhere_race_with_each_other() -> None:
    # Each lane gives the address of the row that it copied and waited for, but gets words of rows that others copied.
    _, report = ran(piped(meet="", row=OWN_WARP), late=False)
    assert [hazard.kind for hazard in report.hazards] == ["race"]


@LATE
def test_a_slot_overwritten_too_early_is_found(*, late: bool) -> None:
    again = 'asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(base + t * 16), "l"(from) : "memory");'
    _, report = ran(piped(after=again + WAIT), late=late)
    assert [hazard.kind for hazard in report.hazards] == ["race"]
    assert "read by" in report.hazards[0].message
    assert "copy by" in report.hazards[0].message
    _, report = ran(piped(after="__syncthreads();" + again + WAIT), late=late)
    assert report.ok, report.hazards


@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize(("first", "kind"), [(0, "same-value"), (1, "race")])
def test_stores_of_matrices_race_too(*, trans: bool, first: int, kind: str) -> None:
    text = moved(1, trans=trans, stores=True)
    at = np.zeros(64, np.uint32)
    at.reshape(2, 32)[:] = np.resize(np.arange(8, dtype=np.uint32) * 16, 32)
    values = np.zeros(4096, np.uint32)
    values[:32] = first  # those of the first warp
    report = launched(text, values, at, np.zeros(4096, np.uint32))
    assert [hazard.kind for hazard in report.hazards] == [kind]
    assert report.hazards[0].message.count("stmatrix") == 2
