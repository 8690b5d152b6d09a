"""wgmma and setmaxnreg used wrongly: each mistake is found, in both schedules, and right code is left alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from matmill.emulator import KernelFault, Report
from matmill.errors import EmulationError
from support.ptx_tools import compile_ptx, entry, launch
from support.warpgroup_ptx import DTYPES, ROWS, THREADS, Form, Operands, execute, kernel, matrix, operands

Array = NDArray[Any]
FORM = Form(16, "bf16", "f32")
REGISTERS = Form(16, "bf16", "f32", a_layout=None)
FENCE, COMMIT = "wgmma.fence.sync.aligned;", "wgmma.commit_group.sync.aligned;"
MMA, FROM_REGISTERS = FORM.instruction(), REGISTERS.instruction()
DESTINATION, OTHER_DESTINATION = ("{" + ", ".join(f"d{i}" for i in range(n, n + 8)) + "}" for n in (0, 8))
OTHER = MMA.replace(DESTINATION, OTHER_DESTINATION)
# A product whose A is a sum of the first one.
CHAINED = FROM_REGISTERS.replace(DESTINATION, OTHER_DESTINATION).replace("a0", "d0")
SCHEDULES = pytest.mark.parametrize("late", [False, True])


def wait(groups: int) -> str:
    return f"wgmma.wait_group.sync.aligned {groups};"


def held(sums: int = 8, form: Form = FORM, threads: int = THREADS) -> Operands:
    """Return operands of ones, with ``sums`` registers of zeros for ``threads`` threads."""
    a, b = (np.ones((rows, form.k), DTYPES[form.a]) for rows in (ROWS, form.n))
    result = operands(form, a, b, np.zeros((ROWS, form.n), np.float32))
    result.sums = np.zeros((threads, sums), np.uint32)
    result.factors = np.resize(result.factors, (threads, 4))
    return result


def ran(body: str, sums: int = 8, form: Form = FORM, **options: Any) -> tuple[Array, Report]:
    """Return the sums as float32[threads, sums] and the report of a body on :func:`held`.

    Options are those of ``execute``.
    """
    out, report = execute(kernel(body, sums), held(sums, form), **options)
    return out.view(np.float32), report


def fault(body: str, *, threads: int = THREADS) -> str:
    """Return the kind and message of the fault that a body ends with."""
    with pytest.raises(KernelFault) as caught:
        execute(kernel(body, 8), held(threads=threads), block=threads)
    return f"{caught.value.hazard.kind}: {caught.value.hazard.message}"


# Groups and registers in flight


@SCHEDULES
def test_right_code_is_left_alone(late: bool) -> None:
    loop = f"""mov.u32 i, 0; Again: {FENCE} {MMA} {MMA} {COMMIT} {FENCE} {MMA} {COMMIT} {wait(1)}
    add.u32 i, i, 1; setp.lt.u32 p, i, 3; @p bra Again; {wait(0)}"""
    out, report = ran(loop, late_copies=late)
    assert report.hazards == ()
    assert (out == 3 * 3 * 16).all()


@SCHEDULES
def test_a_group_that_stays_in_flight(late: bool) -> None:
    body = f"{FENCE} {MMA} {COMMIT} {OTHER} {COMMIT} {wait(1)} add.f32 d0, d0, d0; {wait(0)}"
    out, report = ran(body, 16, late_copies=late)
    assert report.hazards == ()
    assert (out[:, 0] == 32).all()
    assert (out[:, 1:] == 16).all()


@pytest.mark.parametrize(
    "body",
    [
        f"{FENCE} {MMA} {COMMIT} add.f32 d0, d0, d0; {wait(0)}",
        f"{FENCE} {MMA} {COMMIT} mov.u32 i, d3; {wait(0)}",
        f"{FENCE} {MMA} {COMMIT} {wait(1)} mov.u32 i, d3; {wait(0)}",
        f"{FENCE} {MMA} {wait(0)} mov.u32 i, d3; {COMMIT} {wait(0)}",
        f"{FENCE} {MMA} {COMMIT} @q bra On; {wait(0)} On: mov.u32 i, d0; {wait(0)}",
        f"Again: {FENCE} {MMA} {COMMIT} setp.eq.u32 p, d0, 7; @p bra Again; {wait(0)}",
        f"{FENCE} {MMA} {COMMIT} @q mov.u32 d0, 0; {wait(0)}",
        f"{FENCE} {MMA} {COMMIT} {MMA.replace('d6, d7', 'd7, d6')} {COMMIT} {wait(0)}",
        f"{FENCE} {MMA} {CHAINED} {COMMIT} {wait(0)}",
    ],
)
def test_sums_used_in_flight(body: str) -> None:
    _, report = ran(body, 16)
    assert [h.kind for h in report.hazards] == ["register-in-flight"]
    assert "while 'wgmma.mma_async" in report.hazards[0].message


@SCHEDULES
def test_a_changed_in_flight(late: bool) -> None:
    body = f"{FENCE} {FROM_REGISTERS} {COMMIT} mov.u32 i, a1; mov.u32 a1, 0; {wait(0)}"
    out, report = ran(body, form=REGISTERS, late_copies=late)
    assert [h.kind for h in report.hazards] == ["register-in-flight"]
    assert report.hazards[0].instruction == "mov.u32 a1, 0;"
    # Rows 8 and on of each warp come from the register that was overwritten.
    assert (out == np.where(np.arange(8) // 2 % 2 == 1, 8 if late else 16, 16)).all()


def test_sums_in_flight_are_poisoned_in_the_late_schedule() -> None:
    body = f"{FENCE} {MMA} {COMMIT} mov.u32 d8, d0; {wait(0)}"
    assert (ran(body, 9)[0][:, 8] == 16).all()
    late = ran(body, 9, late_copies=True)[0]
    assert np.isnan(late[:, 8]).all()
    assert (late[:, :8] == 16).all()


@SCHEDULES
def test_operands_overwritten_in_flight(late: bool) -> None:
    # The store is ordered by nothing; the schedules differ, and no register is misused.
    body = f"{FENCE} {MMA} {COMMIT} mov.u32 w0, 0; st.shared.v4.u32 [base], {{w0, w0, w0, w0}}; {wait(0)}"
    assert (ran(body, late_copies=late)[0] == 16).all() != late


def test_code_that_did_not_run_is_not_reported() -> None:
    assert ran(f"{FENCE} {MMA} {COMMIT} @!q bra Done; add.f32 d0, d0, d0; Done: {wait(0)}")[1].ok


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (f"{MMA} {COMMIT} {wait(0)}", "no wgmma.fence comes before 'wgmma.mma_async"),
        (f"@q bra On; {FENCE} On: {MMA} {COMMIT} {wait(0)}", "no wgmma.fence comes before"),
        (
            f"{FENCE} mov.u32 d2, 0; {MMA} {COMMIT} {wait(0)}",
            "uses d2, and no wgmma.fence comes after 'mov.u32 d2, 0;'",
        ),
        (f"{FENCE} {MMA} {COMMIT} {wait(0)} mov.u32 i, d1; {MMA} {COMMIT} {wait(0)}", "after 'mov.u32 i, d1;'"),
    ],
)
def test_a_missing_fence(body: str, words: str) -> None:
    hazards = ran(body)[1].hazards
    assert [h.kind for h in hazards] == ["missing-wgmma-fence"]
    assert words in hazards[0].message


def test_a_missing_fence_after_a_was_written() -> None:
    body = f"{FENCE} mov.u32 a2, 0; {FROM_REGISTERS} {COMMIT} {wait(0)}"
    assert [h.kind for h in ran(body, form=REGISTERS)[1].hazards] == ["missing-wgmma-fence"]


@SCHEDULES
def test_products_that_nobody_waits_for(late: bool) -> None:
    for body, words in ((f"{MMA} {COMMIT}", "never waited for"), (f"{MMA} {wait(0)}", "never committed")):
        hazards = [h for h in ran(f"{FENCE} {body} ret;", late_copies=late)[1].hazards if h.kind == "unwaited"]
        assert len(hazards) == 1
        assert words in hazards[0].message


# Races with what products read


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        (f"{FENCE} {MMA} {COMMIT} {wait(0)} bar.sync 0; @p st.shared.u32 [base], w0;", []),
        (f"{FENCE} {MMA} {COMMIT} {wait(0)} @p st.shared.u32 [base], w0;", ["race"]),
        (f"{FENCE} {MMA} {COMMIT} {wait(1)} bar.sync 0; @p st.shared.u32 [base], w0; {wait(0)}", ["race"]),
        (f"@p st.shared.u32 [base], w0; bar.sync 0; {FENCE} {MMA} {COMMIT} {wait(0)}", ["missing-proxy-fence"]),
        (f"@p st.shared.u32 [base], w0; fence.proxy.async; bar.sync 0; {FENCE} {MMA} {COMMIT} {wait(0)}", []),
    ],
)
@SCHEDULES
def test_operands_written_by_one_thread(body: str, kinds: list[str], late: bool) -> None:
    # A thread of another warp than the one that reads these bytes of A, which PTX wants to have waited itself.
    _, report = ran(f"setp.eq.u32 p, t, 32; {body}", late_copies=late, races=True, own_waits=True)
    assert [h.kind for h in report.hazards] == kinds
    # On Hopper a product that one warp sees complete is complete for the warpgroup.
    waited = f"{wait(0)} @p" in body
    _, report = ran(f"setp.eq.u32 p, t, 32; {body}", late_copies=late, races=True)
    assert [h.kind for h in report.hazards] == ([] if waited else kinds)
    assert all("asynchronous read by thread" in h.message for h in report.hazards)


@pytest.mark.parametrize(("own_waits", "kinds"), [(False, []), (True, ["missing-proxy-fence"])])
def test_a_fence_between_the_barrier_and_the_product(own_waits: bool, kinds: list[str]) -> None:
    # Triton places its fences so. PTX leaves open whether that is enough; --strict asks for the writer's own.
    body = f"@p st.shared.u32 [base], w0; bar.sync 0; fence.proxy.async; {FENCE} {MMA} {COMMIT} {wait(0)}"
    _, report = ran(f"setp.eq.u32 p, t, 32; {body}", races=True, own_waits=own_waits)
    assert [h.kind for h in report.hazards] == kinds


@pytest.mark.parametrize("early", ["fence.proxy.async; bar.sync 0;", "bar.sync 0; @p fence.proxy.async;"])
def test_a_fence_that_does_not_come_between(early: str) -> None:
    # Before the store, or by threads of another warp alone.
    before, after = ("", early) if early.startswith("bar") else (early, "")
    body = f"{before} @p st.shared.u32 [base], w0; bar.sync 0; {after} {FENCE} {MMA} {COMMIT} {wait(0)}"
    _, report = ran(f"setp.eq.u32 p, t, 32; {body}", races=True)
    assert [h.kind for h in report.hazards] == ["missing-proxy-fence"]


# Warpgroups


def test_warps_that_take_different_ways() -> None:
    once = f"{MMA} {COMMIT} {wait(0)}"
    skipped = f"{FENCE} setp.lt.u32 p, t, 96; @!p bra On; {once} On:"
    assert "warpgroup: k: warp 0 of block (0, 0, 0) executes 'wgmma.mma_async" in fault(skipped)
    assert "warp 3 of its warpgroup never does" in fault(skipped)
    other = f"{FENCE} setp.lt.u32 p, t, 96; @!p bra Other; {once} bra On; Other: {once} On:"
    assert "warp 0 of its warpgroup executes 'wgmma.mma_async" in fault(other)


def test_operands_that_differ() -> None:
    shifted = "shr.u32 i, t, {0}; cvt.u64.u32 at, i; shl.b64 at, at, 6; add.u64 da, da, at;"
    assert "warp 0 of its warpgroup has descriptors" in fault(f"{FENCE} {shifted.format(5)} {MMA}")
    assert (
        "thread (16, 0, 0) of block (0, 0, 0) and thread (0, 0, 0) of block (0, 0, 0), of one warp, give different"
        in fault(f"{FENCE} {shifted.format(4)} {MMA}")
    )
    scale = FORM.instruction(scale="p")
    assert "and scale-d True, where" in fault(f"{FENCE} setp.ge.u32 p, t, 64; {scale}")
    assert "give different descriptors or scale-d" in fault(f"{FENCE} setp.ge.u32 p, t, 65; {scale}")


@pytest.mark.parametrize("instruction", [MMA, FENCE, COMMIT, "setmaxnreg.dec.sync.aligned.u32 40;"])
def test_part_of_a_warp(instruction: str) -> None:
    for body in (f"setp.lt.u32 p, t, 40; @p {instruction}", f"setp.lt.u32 p, t, 40; @!p bra On; {instruction} On:"):
        assert fault(f"{FENCE} {body}").startswith("partial-warp: k: 8 of the 32 threads")


def test_warps_beyond_the_last_warpgroup() -> None:
    assert "the block has 6 warps, so it is in no whole warpgroup" in fault(
        f"setp.ge.u32 p, t, 128; @p {FENCE} ret;", threads=192
    )


def test_a_guard_that_holds_for_a_whole_warpgroup() -> None:
    body = f"setp.lt.u32 p, t, 128; {FENCE} @p {MMA} {COMMIT} {wait(0)}"
    out, report = execute(kernel(body, 8), held(threads=256), block=256)
    assert report.hazards == ()
    assert (out.view(np.float32) == np.where(np.arange(256) < THREADS, 16, 0)[:, None]).all()
    assert (report.counters.gmma, report.counters.matrix_flops) == (4, 2 * 64 * 16 * 16)
    assert report.counters.wgmma_shared_bytes == (64 + 16) * 32


@pytest.mark.parametrize("schedule", range(4))
@SCHEDULES
def test_any_order_of_warps(schedule: int, late: bool) -> None:
    form = Form(24, "f16", "f32")
    rng = np.random.default_rng(schedule)
    a, b = (rng.integers(-4, 5, (rows, 16)).astype(np.float16) for rows in (64, 24))
    body = f"mov.u32 i, 0; Again: {FENCE} {form.instruction()} {COMMIT} bar.sync 0; {wait(0)}"
    body += " add.u32 i, i, 1; setp.lt.u32 p, i, 3; @p bra Again;"
    packed = operands(form, a, b, np.zeros((64, 24), np.float32))
    out, report = execute(kernel(body, form.sums), packed, schedule=schedule, late_copies=late)
    assert report.hazards == ()
    assert (matrix(form, out) == 3 * a.astype(np.float32) @ b.astype(np.float32).T).all()


# Operands in shared memory


def test_descriptors_that_are_none() -> None:
    for bits, words in (
        (1 << 14, "its reserved bits 0x4000 are set"),
        (1 << 60, "reserved bits"),
        (3 << 49, "its base offset is 3"),
    ):
        assert words in fault(f"{FENCE} add.u64 da, da, {bits}; {MMA}")
    result = fault(f"{FENCE} add.u64 db, db, {3 << 49}; {MMA}")
    assert "matrix-descriptor: k: warp 0 of block (0, 0, 0) describes B as 0x4" in result


def test_operands_outside_shared_memory() -> None:
    result = fault(f"{FENCE} add.u64 db, db, {1 << 16 - 4}; {MMA}")
    assert result.startswith("out-of-bounds: k: warp 0 of block (0, 0, 0) describes B as ")
    assert "swizzled by 128 B" in result


def test_operands_that_nothing_was_stored_to() -> None:
    _, report = ran(f"{FENCE} add.u64 db, db, 64; {MMA} {COMMIT} {wait(0)}", spare=1024)
    assert [h.kind for h in report.hazards] == ["uninitialised-shared"]
    assert "describes B as" in report.hazards[0].message


# Forms that do not exist


@pytest.mark.parametrize(
    ("instruction", "why"),
    [
        (MMA.replace("n16", "n12"), "shape and types"),
        (MMA.replace("k16", "k8"), "shape and types"),
        (Form(40, "s8", "s32").instruction(), "shape and types"),
        (MMA.replace("f32.bf16", "f16.bf16"), "shape and types"),
        (MMA.replace("f32.bf16.bf16", "f32.bf16.f16"), "shape and types"),
        (MMA.replace("mma_async", "mma_async.sp"), "sparse"),
        (MMA.replace("1, 1, 1, 0, 0;", "1, 1, 1;"), "immediates"),
        (MMA.replace("1, 1, 1, 0, 0;", "1, 2, 1, 0, 0;"), "immediates"),
        (MMA.replace("1, 1, 1, 0, 0;", "1, 1, 1, 0, 2;"), "immediates"),
        (FROM_REGISTERS.replace("1, 1, 1, 0;", "1, 1, 1, 0, 0;"), "immediates"),
        (Form(8, "tf32", "f32").instruction().replace("1, 1, 1;", "1, 1, 1, 0, 0;"), "immediates"),
        (MMA.replace("d6, d7", "d6"), "8 different ones"),
        (MMA.replace("d6, d7", "d6, d6"), "8 different ones"),
        (Form(8, "bf16", "f32", extra=".satfinite").instruction(), "satfinite"),
        ("wgmma.wait_group.sync.aligned i;", "no literal"),
        ("wgmma.fence.sync.aligned 0;", "number of its operands"),
        ("setmaxnreg.inc.sync.aligned.u32 260;", "multiple of 8"),
        ("setmaxnreg.inc.sync.aligned.u32 100;", "multiple of 8"),
    ],
)
def test_forms_that_do_not_exist(instruction: str, why: str) -> None:
    with pytest.raises(EmulationError, match=why):
        execute(kernel(instruction, 24), held(24))


# setmaxnreg


def budget(consumers: int, producer: int = 24, threads: int = 384, limits: str = ".maxntid 384") -> Report:
    """Return a kernel whose first warpgroup gives registers back and whose others take some."""
    body = f""".reg .pred p; .reg .b32 t; mov.u32 t, %tid.x; setp.lt.u32 p, t, 128; @p bra Producer;
    setmaxnreg.inc.sync.aligned.u32 {consumers}; ret;
    Producer: setmaxnreg.dec.sync.aligned.u32 {producer};"""
    return launch(entry(body).replace("()\n{", f"() {limits}\n{{"), {}, block=(threads, 1, 1))


def test_budgets_that_fill_an_sm() -> None:
    assert budget(240).ok
    assert budget(232, 40).ok
    assert budget(160, 32, 512, ".maxntid 512 .minnctapersm 1").ok
    assert budget(240, limits=".maxntid 384 .maxnreg 168").ok
    assert budget(240, limits="").ok
    # The launch gives no more than the largest increase asks for.
    assert budget(248, 48, 256, ".maxntid 256 .minnctapersm 1").ok
    assert budget(160).ok


@pytest.mark.parametrize(
    ("consumers", "producer", "limits", "words"),
    [
        (248, 24, ".maxntid 384", "waits for ever: the warps of its block ask for 66560 registers together, and the"),
        (240, 40, ".maxntid 384", "the launch gave the block 64512"),
        (240, 24, ".maxntid 384 .maxnreg 128", "the launch gave the block 49152"),
        (240, 176, ".maxntid 384", "it holds 168 per thread"),
        (160, 168, ".maxntid 384", "it holds 160 per thread"),
    ],
)
def test_budgets_that_do_not_fit(consumers: int, producer: int, limits: str, words: str) -> None:
    with pytest.raises(KernelFault, match=words) as caught:
        budget(consumers, producer, limits=limits)
    assert caught.value.hazard.kind == ("register-pool" if "holds" in words else "deadlock")


def test_an_increase_to_fewer_than_a_warp_holds() -> None:
    twice = "setmaxnreg.inc.sync.aligned.u32 160; setmaxnreg.inc.sync.aligned.u32 120;"
    with pytest.raises(KernelFault, match="it holds 160 per thread"):
        launch(entry(twice).replace("()\n{", "() .maxntid 128\n{"), {}, block=(128, 1, 1))


def test_setmaxnreg_of_part_of_a_warpgroup() -> None:
    assert "warpgroup: k: warp 0" in fault("setp.lt.u32 p, t, 64; @p setmaxnreg.dec.sync.aligned.u32 40;")


# What the compiler makes


@SCHEDULES
def test_a_compiled_loop(late: bool) -> None:
    sums = ", ".join(f"%{i}" for i in range(8))
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(8))
    source = f"""
    typedef unsigned long long u64;
    extern "C" __global__ void k(float* out, const int4* image, int rounds) {{
      extern __shared__ __align__(1024) int4 shared[];
      for (int i = threadIdx.x; i < 640; i += 128) shared[i] = image[i];
      asm volatile("fence.proxy.async;" ::: "memory");
      __syncthreads();
      const u64 common = 64ull << 32 | 1ull << 62;
      const u64 a = common | ((unsigned)__cvta_generic_to_shared(shared) >> 4), b = a + (8192 >> 4);
      float d[8] = {{}};
      for (int r = 0; r < rounds; r++) {{
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        for (int j = 0; j < 4; j++)
          asm volatile("{{.reg .pred p; setp.ne.b32 p, %10, 0; wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
              "{{{sums}}}, %8, %9, p, 1, 1, 0, 0;}}" : {outputs} : "l"(a + 2 * j), "l"(b + 2 * j), "r"(r + j));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
      }}
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
      for (int i = 0; i < 8; i++) out[threadIdx.x * 8 + i] = d[i];
    }}"""
    out = np.zeros((THREADS, 8), np.float32)
    ones = np.ones(64 * 80, DTYPES["bf16"]).view(np.uint8)
    ptx = compile_ptx(source, "--gpu-architecture=sm_90a")
    report = launch(
        ptx,
        {"out": out, "image": ones},
        np.int32(5),
        block=(THREADS, 1, 1),
        shared=10240,
        options={"late_copies": late},
    )
    assert report.hazards == ()
    assert (out == 5 * 64).all()
