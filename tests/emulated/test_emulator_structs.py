"""Structs that kernels take by value: parameters as raw bytes, read at fixed and at computed offsets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from matmill.emulator import KernelFault, Memory, Report, run
from matmill.errors import ArgumentError
from matmill.launch import Launch, Pointer, Struct, TensorMap
from matmill.tensor_map import encode
from support.ptx_tools import HEADER, Array, compile_ptx

THREADS = 64
STRUCT = """
struct Inner { short s; double d; };
struct Args { const float* in; float* out; int n; double scale; signed char c; Inner inner[2]; int table[5]; };
"""
# The same, laid out by NumPy as C does it.
INNER = np.dtype([("s", "i2"), ("d", "f8")], align=True)
ARGS = np.dtype(
    [
        *(("in", "u8"), ("out", "u8"), ("n", "i4"), ("scale", "f8"), ("c", "i1")),
        *(("inner", INNER, 2), ("table", "i4", 5)),
    ],
    align=True,
)
DIRECT = """
extern "C" __global__ void k(const {grid_constant} Args args) {{
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= args.n) return;
  const Inner inner = args.inner[i & 1];
  args.out[i] = args.in[i] * args.scale + args.table[i % 5] + inner.d + inner.s + args.c;
}}
"""
THROUGH_A_POINTER = """
__device__ __noinline__ double rest(const Args* args, int i) {
  const Inner* inner = &args->inner[i & 1];
  return args->table[i % 5] + inner->d + inner->s + args->c;
}
extern "C" __global__ void k(const __grid_constant__ Args args) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < args.n) args.out[i] = args.in[i] * args.scale + rest(&args, i);
}
"""
KERNELS = {
    "at fixed and computed offsets": DIRECT.format(grid_constant="__grid_constant__"),
    "copied to local memory": DIRECT.format(grid_constant=""),
    "through a generic pointer": THROUGH_A_POINTER,
}


def args_of(memory: Memory, source: Array, out: Array, n: int) -> Array:
    """Return the struct for these arrays, under the names "x" and "y", with numbers in all its other members."""
    args = np.zeros((), ARGS)
    args["in"] = memory.bind("x", source, access="r").address
    args["out"] = memory.bind("y", out, access="w").address
    args["n"], args["scale"], args["c"] = n, 0.5, -3
    args["inner"]["s"], args["inner"]["d"] = (-7, 1000), (0.25, 1e6)
    args["table"] = (1, 20, 300, 4000, 50000)
    return args


def launch(ptx: str, memory: Memory, *arguments: Any, threads: int = THREADS) -> Report:
    return run(ptx, Launch("structs", "k", (2, 1, 1), (threads // 2, 1, 1), arguments), memory)


@pytest.mark.parametrize("name", KERNELS)
def test_members_have_the_values_that_the_host_gave(name: str) -> None:
    assert (ARGS.itemsize, ARGS.alignment) == (96, 8)
    memory = Memory()
    x, y = np.arange(THREADS, dtype=np.float32), np.full(THREADS, np.nan, np.float32)
    args = args_of(memory, x, y, THREADS - 3)
    report = launch(compile_ptx(STRUCT + KERNELS[name]), memory, Struct(args.tobytes(), 8))
    i = np.arange(THREADS - 3)
    inner = args["inner"][i & 1]
    expected = x[i] * args["scale"] + args["table"][i % 5] + inner["d"] + inner["s"] + args["c"]
    assert report.ok
    np.testing.assert_array_equal(y[i], expected.astype(np.float32))
    assert np.isnan(y[THREADS - 3 :]).all()
    # Parameters are constants: they are no traffic of global memory.
    assert (report.counters.global_load_requests, report.counters.global_store_requests) == (2, 2)


def test_each_launch_has_its_own_bytes() -> None:
    ptx = compile_ptx(STRUCT + KERNELS["at fixed and computed offsets"])
    memory = Memory()
    x, y, z = np.ones(THREADS, np.float32), *np.zeros((2, THREADS), np.float32)
    args = args_of(memory, x, y, THREADS)
    launch(ptx, memory, Struct(args.tobytes(), 8))
    args["out"], args["scale"] = memory.bind("z", z, access="w").address, 8.5
    launch(ptx, memory, Struct(args.tobytes(), 8))
    np.testing.assert_array_equal(z - y, np.full(THREADS, 8, np.float32))


@pytest.mark.parametrize(("size", "align"), [(95, 8), (97, 8), (0, 8), (192, 8), (96, 4), (96, 16)])
def test_another_size_or_alignment_is_refused(size: int, align: int) -> None:
    ptx = compile_ptx(STRUCT + KERNELS["at fixed and computed offsets"])
    with pytest.raises(
        ArgumentError, match=rf"launch.args\[0\].*a struct of {size} bytes, aligned to {align}\b"
    ) as result:
        launch(ptx, Memory(), Struct(bytes(size), align))
    assert "96 bytes, aligned to 8, for parameter k_param_0" in str(result.value)


def test_a_number_in_place_of_a_struct_is_refused() -> None:
    ptx = compile_ptx(STRUCT + KERNELS["at fixed and computed offsets"])
    with pytest.raises(ArgumentError, match=r"4 bytes.*96 bytes for parameter k_param_0"):
        launch(ptx, Memory(), np.int32(1))


def test_numbers_and_structs_may_be_mixed() -> None:
    body = """ld.param.u64 to, [out]; ld.param.u16 x, [a]; st.global.u32 [to], x;
    ld.param.u8 x, [s+2]; st.global.u32 [to+4], x;"""
    ptx = _by_hand(".param .align 2 .b8 a[2], .param .u64 out, .param .align 1 .b8 s[3]", body)
    memory, out = Memory(), np.zeros(2, np.uint32)
    # A struct of one half, given as the number that it is; NumPy has no buffer of bfloat16.
    half = np.array(1.5, ml_dtypes.bfloat16)[()]
    launch(ptx, memory, half, memory.bind("out", out, access="rw"), Struct(b"\1\2\3", 1), threads=2)
    assert out.tolist() == [0x3FC0, 3]


def test_faults_and_races_name_the_buffers_that_pointers_of_a_struct_meet() -> None:
    memory = Memory()
    x, y = np.zeros(THREADS - 1, np.float32), np.zeros(THREADS, np.float32)
    args = args_of(memory, x, y, THREADS)
    ptx = compile_ptx(STRUCT + KERNELS["at fixed and computed offsets"])
    with pytest.raises(KernelFault, match=r"reads 4 bytes at 0 B behind the end of x \(252 B\)"):
        launch(ptx, memory, Struct(args.tobytes(), 8))
    racing = STRUCT + 'extern "C" __global__ void k(const __grid_constant__ Args args) { *args.out = threadIdx.x; }'
    report = launch(compile_ptx(racing), memory, Struct(args.tobytes(), 8))
    assert report.hazards
    assert all(h.kind == "race" and "structs: y + 0 B of 256: write by" in h.message for h in report.hazards)


def _by_hand(parameters: str, body: str) -> str:
    declared = ".reg .b64 at, to, v, w; .reg .b32 x; .reg .pred p;"
    return f"{HEADER}.visible .entry k({parameters})\n{{\n{declared}\n{body}\nret;\n}}\n"


def test_an_alignment_of_64_bytes_holds_for_the_address() -> None:
    """A tensor map is 128 bytes at a multiple of 64, whatever parameters come before it."""
    body = """ld.param.u64 to, [out]; mov.b64 at, map; cvta.param.u64 at, at; and.b64 v, at, 63; st.global.u64 [to], v;
    ld.u64 v, [at+120]; st.global.u64 [to+8], v; ld.param.v2.b64 {v, w}, [map+96]; st.global.u64 [to+16], w;
    isspacep.param p, at; selp.u64 v, 1, 0, p; st.global.u64 [to+24], v;"""
    ptx = _by_hand(".param .u32 n, .param .u64 out, .param .align 64 .b8 map[128]", body)
    memory, out = Memory(), np.full(4, 99, np.uint64)
    map_bytes = np.arange(16, dtype=np.uint64).tobytes()
    pointer = memory.bind("out", out, access="rw")
    launch(ptx, memory, np.uint32(7), pointer, Struct(map_bytes, 64), threads=2)
    assert out.tolist() == [0, 15, 13, 1]


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        ("ld.param.u32 x, [a+16];", "out-of-bounds", r"reads 4 bytes at a \+ 16 B of 16"),
        ("ld.param.u64 v, [a+4];", "misaligned", r"reads 8 bytes at a \+ 4 B of 16"),
        ("mov.b64 at, b; ld.param.u64 v, [at+8];", "out-of-bounds", "reads 8 bytes at byte 24 of 24 B of param memory"),
        ("mov.b64 at, a; ld.param.u64 v, [at+4];", "misaligned", r"reads 8 bytes at a \+ 4 B in param memory"),
        (
            "mov.b64 at, a; cvta.param.u64 at, at; st.u64 [at+8], 5;",
            "read-only",
            r"writes 8 bytes at a \+ 8 B in param memory, which is read-only",
        ),
    ],
)
def test_what_a_kernel_may_not_do_with_its_parameters(body: str, kind: str, message: str) -> None:
    ptx = _by_hand(".param .align 8 .b8 a[16], .param .align 8 .b8 b[8]", body)
    whole = Struct(bytes(16), 8)
    with pytest.raises(KernelFault, match=message) as result:
        launch(ptx, Memory(), whole, replace(whole, data=bytes(8)), threads=2)
    assert result.value.hazard.kind == kind


def test_tensor_maps_are_parameters_of_128_bytes() -> None:
    tensor = TensorMap(Pointer("A", 1 << 36), "float16", (64, 8), (128,), (64, 8), swizzle=128)
    body = " ".join(f"ld.param.b64 v, [map+{at}]; st.global.u64 [to+{at}], v;" for at in range(0, 128, 8))
    ptx = _by_hand(".param .u64 out, .param .align 64 .b8 map[128]", f"ld.param.u64 to, [out]; {body}")
    memory, out = Memory(), np.ones(16, np.uint64)
    launch(ptx, memory, memory.bind("out", out, access="rw"), tensor, threads=2)
    assert out.tobytes() == encode(tensor, 1 << 36)
    with pytest.raises(ArgumentError, match=r"tensor map of A: box\[0\]: got 128 bytes"):
        launch(ptx, memory, memory.bind("out", out, access="rw"), replace(tensor, swizzle=64), threads=2)
