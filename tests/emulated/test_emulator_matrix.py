"""Matrix instructions: fragments by index formulas of the test's own, results against NumPy, from compiled CUDA C++."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from matmill.emulator import KernelFault, Memory, Report, parse, run
from matmill.emulator.arith.tensor_core import rule_of
from matmill.emulator.program.translate import translate
from matmill.errors import EmulationError
from matmill.jit.compile import compile_ptx
from matmill.jit.source import Source
from matmill.launch import Launch
from support.tensor_core_rule import sum_of_products

Array = NDArray[Any]
# (group, thread in group, element) -> (row, column), as the PTX ISA gives them for each shape.
Coordinates = Callable[[int, int, int], tuple[int, int]]
WARPS = 6
LOWER = 8


@dataclass(frozen=True)
class Fragments:
    """Where the elements of A, B (row: k) and C are, in the order in which a lane holds them."""

    a: Coordinates
    b: Coordinates
    c: Coordinates


def wide_sums(g: int, t: int, i: int) -> tuple[int, int]:
    return (g if i < 2 else g + 8, t * 2 + (i & 1))


def small_sums(g: int, t: int, i: int) -> tuple[int, int]:
    return (g, t * 2 + i)


HALF_8 = Fragments(
    lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
    lambda g, t, i: (t * 2 + i, g),
    wide_sums,
)
HALF_16 = Fragments(
    lambda g, t, i: (g if i < 2 or 4 <= i < 6 else g + 8, t * 2 + (i & 1) + (0 if i < 4 else 8)),
    lambda g, t, i: (t * 2 + (i & 1) + (0 if i < 2 else 8), g),
    wide_sums,
)
WORD_4 = Fragments(lambda g, t, i: (g if i == 0 else g + 8, t), lambda g, t, _: (t, g), wide_sums)
WORD_8 = Fragments(
    lambda g, t, i: (g if i in {0, 2} else g + 8, t if i < 2 else t + 4),
    lambda g, t, i: (t if i == 0 else t + 4, g),
    wide_sums,
)
DOUBLE_8_4 = Fragments(lambda g, t, _: (g, t), lambda g, t, _: (t, g), small_sums)
DOUBLE_16 = Fragments(
    lambda g, t, i: (g, i * 2 + t) if i % 2 == 0 else (g + 8, i * 2 - 2 + t),
    lambda g, t, i: (t + i * 4, g),
    wide_sums,
)
BYTE_8_16 = Fragments(lambda g, t, i: (g, t * 4 + i), lambda g, t, i: (t * 4 + i, g), small_sums)
BYTE_16 = Fragments(lambda g, t, i: (g if i < 4 else g + 8, t * 4 + (i & 3)), lambda g, t, i: (t * 4 + i, g), wide_sums)
BYTE_32 = Fragments(
    lambda g, t, i: (g if i < 4 or 8 <= i < 12 else g + 8, t * 4 + (i & 3) + (0 if i < 8 else 16)),
    lambda g, t, i: (t * 4 + (i & 3) + (0 if i < 4 else 16), g),
    wide_sums,
)
DTYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16), "tf32": np.dtype(np.float32),
    "f32": np.dtype(np.float32), "f64": np.dtype(np.float64), "s8": np.dtype(np.int8), "u8": np.dtype(np.uint8),
    "s32": np.dtype(np.int32),
}  # fmt: skip


@dataclass(frozen=True)
class Mma:
    """An instruction and where it exists."""

    shape: tuple[int, int, int]
    a: str
    b: str
    d: str
    fragments: Fragments
    targets: tuple[str, ...]
    extra: str = ""

    @property
    def opcode(self) -> str:
        """The opcode with all its modifiers."""
        m, n, k = self.shape
        return f"mma.sync.aligned.m{m}n{n}k{k}.row.col{self.extra}.{self.d}.{self.a}.{self.b}.{self.d}"

    def registers(self) -> tuple[int, int, int]:
        """Return registers per lane of A, B and C: of 8 bytes for f64, else of 4."""
        m, n, k = self.shape
        elements = ((m * k, self.a), (n * k, self.b), (m * n, self.d))
        first, second, third = (
            count * DTYPES[kind].itemsize // 32 // (8 if self.a == "f64" else 4) for count, kind in elements
        )
        return first, second, third


OLD, MIDDLE, NEW = ("sm_75", "sm_80", "sm_90a"), ("sm_80", "sm_90a"), ("sm_90a",)
FORMS = (
    Mma((16, 8, 8), "f16", "f16", "f16", HALF_8, OLD),
    Mma((16, 8, 8), "f16", "f16", "f32", HALF_8, OLD),
    Mma((16, 8, 16), "f16", "f16", "f16", HALF_16, MIDDLE),
    Mma((16, 8, 16), "f16", "f16", "f32", HALF_16, MIDDLE),
    Mma((16, 8, 8), "bf16", "bf16", "f32", HALF_8, MIDDLE),
    Mma((16, 8, 16), "bf16", "bf16", "f32", HALF_16, MIDDLE),
    Mma((16, 8, 4), "tf32", "tf32", "f32", WORD_4, MIDDLE),
    Mma((16, 8, 8), "tf32", "tf32", "f32", WORD_8, MIDDLE),
    Mma((8, 8, 4), "f64", "f64", "f64", DOUBLE_8_4, MIDDLE),
    Mma((16, 8, 4), "f64", "f64", "f64", WORD_4, NEW),
    Mma((16, 8, 8), "f64", "f64", "f64", WORD_8, NEW),
    Mma((16, 8, 16), "f64", "f64", "f64", DOUBLE_16, NEW),
    Mma((8, 8, 16), "s8", "s8", "s32", BYTE_8_16, OLD),
    Mma((8, 8, 16), "u8", "s8", "s32", BYTE_8_16, OLD),
    Mma((16, 8, 16), "s8", "u8", "s32", BYTE_16, MIDDLE),
    Mma((16, 8, 32), "s8", "s8", "s32", BYTE_32, MIDDLE),
    Mma((16, 8, 32), "u8", "u8", "s32", BYTE_32, MIDDLE, extra=".satfinite"),
)
BY_TARGET = [(form, target) for form in FORMS for target in form.targets]
EACH = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.opcode)


def kernel(form: Mma, guard: str = "") -> str:
    """Return CUDA C++ that makes one product per warp of registers laid out lane by lane."""
    word, constraint = ("double", "d") if form.a == "f64" else ("unsigned", "r")
    counts = form.registers()
    float_sums = form.d == "f32"
    lists, at = [], 0
    for count in (counts[2], *counts):
        lists.append("{" + ", ".join(f"%{at + i}" for i in range(count)) + "}")
        at += count
    c = "f" if float_sums else constraint
    loads = {"a": counts[0], "b": counts[1], "c": counts[2]}
    inputs = []
    for name, count in loads.items():
        one = f"__uint_as_float({name}[i * {count} + R])" if name == "c" and float_sums else f"{name}[i * {count} + R]"
        kind = c if name == "c" else constraint
        inputs += [f'"{kind}"({one.replace("R", str(r))})' for r in range(count)]
    sums = "float" if float_sums else word
    outputs = ", ".join(f'"={c}"(d[{r}])' for r in range(counts[2]))
    store = "__float_as_uint(d[r])" if float_sums else "d[r]"
    # Results come first in the operand list, so the numbering above counts C's registers twice.
    return f"""extern "C" __global__ void k(const {word}* a, const {word}* b, const {word}* c, {word}* o) {{
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  {sums} d[{counts[2]}];
  {guard}
  asm volatile("{form.opcode} {lists[0]}, {lists[1]}, {lists[2]}, {lists[3]};" : {outputs} : {", ".join(inputs)});
  for (int r = 0; r < {counts[2]}; r++) o[i * {counts[2]} + r] = {store};
}}"""


def packed(matrices: Array, element: Coordinates, elements: int) -> Array:
    """Return the fragments of matrices [warps, rows, columns], as [warps, 32, elements]."""
    out = np.empty((len(matrices), 32, elements), matrices.dtype)
    for lane in range(32):
        for i in range(elements):
            row, column = element(lane >> 2, lane & 3, i)
            out[:, lane, i] = matrices[:, row, column]
    return out


def unpacked(fragments: Array, element: Coordinates, shape: tuple[int, int]) -> Array:
    """Return the matrices that fragments [warps, 32, elements] hold; every element must be somewhere."""
    out = np.empty((len(fragments), *shape), fragments.dtype)
    seen = np.zeros(shape, np.int64)
    for lane in range(32):
        for i in range(fragments.shape[2]):
            row, column = element(lane >> 2, lane & 3, i)
            out[:, row, column] = fragments[:, lane, i]
            seen[row, column] += 1
    assert (seen == 1).all()
    return out


def emulated(form: Mma, target: str, a: Array, b: Array, c: Array, **options: Any) -> tuple[Array, Report]:
    """Return D of matrices A [warps, m, k], B [warps, k, n] and C [warps, m, n], and the report."""
    m, n, k = form.shape
    parts = [
        packed(a, form.fragments.a, m * k // 32),
        packed(b, form.fragments.b, n * k // 32),
        packed(c, form.fragments.c, m * n // 32),
    ]
    word = np.float64 if form.a == "f64" else np.uint32
    memory = Memory()
    out = np.full(parts[2].shape, 7, c.dtype)
    arrays = [np.ascontiguousarray(x).view(np.uint8).reshape(-1).view(word) for x in parts]
    pointers = [memory.bind(name, array, access="r") for name, array in zip("abc", arrays, strict=True)]
    pointers.append(memory.bind("o", out, access="w"))
    ptx = compile_ptx(Source("matrix", "k", kernel(form)), target)
    launch = Launch("matrix", "k", (len(a) // 2, 1, 1), (64, 1, 1), tuple(pointers))
    report = run(ptx, launch, memory, **options)
    return unpacked(out, form.fragments.c, (m, n)), report


def drawn(form: Mma, seed: int) -> tuple[Array, Array, Array]:
    """Return random matrices of the instruction's types, alike in size within a warp and unlike between warps."""
    rng = np.random.default_rng(seed)
    m, n, k = form.shape

    def matrices(kind: str, rows: int, columns: int) -> Array:
        dtype, shape = DTYPES[kind], (WARPS, rows, columns)
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
        scale = 2.0 ** rng.integers(-4, 5, (WARPS, 1, 1))
        values = (rng.uniform(-1, 1, shape) * scale).astype(dtype)
        return (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) if kind == "tf32" else values

    return matrices(form.a, m, k), matrices(form.b, k, n), matrices(form.d, m, n)


def products(form: Mma, target: str, a: Array, b: Array, c: Array) -> Array:
    """Return what the instruction should give on a target, element by element in plain Python."""
    wide = np.float64 if DTYPES[form.d].kind == "f" else np.int64
    a, b, c = (x.astype(wide) for x in (a, b, c))
    out = np.empty(c.shape, DTYPES[form.d])
    for element in np.ndindex(*c.shape):
        w, i, j = element
        if form.d == "f64":
            total = float(c[element])
            for x, y in zip(a[w, i], b[w, :, j], strict=True):
                total = math.fma(x, y, total) if hasattr(math, "fma") else exact_fma(x, y, total)
            out[element] = total
        elif form.d == "s32":
            sum_of = int(c[element]) + sum(int(x) * int(y) for x, y in zip(a[w, i], b[w, :, j], strict=True))
            clamped = max(-(2**31), min(2**31 - 1, sum_of))
            out[element] = clamped if form.extra else (sum_of + 2**31) % 2**32 - 2**31
        else:
            rule = rule_of(target, form.a, form.d)
            out[element] = sum_of_products(a[w, i].tolist(), b[w, :, j].tolist(), float(c[element]), rule)
    return out


def info(values: Array) -> Any:
    """Return the limits of a floating-point type."""
    return ml_dtypes.finfo(values.dtype)  # type: ignore[no-untyped-call] # ml_dtypes leaves it without types


def exact_fma(x: float, y: float, z: float) -> float:
    """Return X y + z rounded once: three terms add up exactly in fsum where the product is split without error."""
    half = 134217729.0
    high_x, high_y = (v * half - (v * half - v) for v in (x, y))
    low_x, low_y = x - high_x, y - high_y
    return math.fsum([high_x * high_y, high_x * low_y, low_x * high_y, low_x * low_y, z])


@pytest.mark.parametrize(("form", "target"), BY_TARGET, ids=lambda x: x if isinstance(x, str) else x.opcode)
def test_products_of_random_matrices(form: Mma, target: str) -> None:
    a, b, c = drawn(form, seed=1)
    result, report = emulated(form, target, a, b, c)
    assert report.ok
    assert (result == products(form, target, a, b, c)).all()


@EACH
def test_one_element_at_a_time(form: Mma) -> None:
    # Every pair of an element of A and one of B that meet: a wrong layout cannot hide behind sums.
    m, n, k = form.shape
    warps = m if m % 2 == 0 else m + 1
    a, b = np.zeros((warps, m, k), DTYPES[form.a]), np.zeros((warps, k, n), DTYPES[form.b])
    c = np.zeros((warps, m, n), DTYPES[form.d])
    rows = np.arange(warps) % m
    depth = (np.arange(warps) * 3 + 1) % k
    a[np.arange(warps), rows, depth] = 2
    b[np.arange(warps), depth] = np.arange(1, n + 1)
    result, _ = emulated(form, form.targets[-1], a, b, c)
    wanted = np.zeros_like(result)
    wanted[np.arange(warps), rows] = 2 * np.arange(1, n + 1)
    assert (result == wanted).all()


FLOATS = [form for form in FORMS if form.d != "s32"]


@pytest.mark.parametrize("form", FLOATS, ids=lambda form: form.opcode)
def test_infinities_nan_and_overflow(form: Mma) -> None:
    a, b, c = drawn(form, seed=2)
    a[0, 0, 0], b[0, 0, :] = np.inf, 1
    a[1, 0, 0], b[1, 0, 0] = np.inf, 0
    a[2, 0, 0], a[2, 0, 1], b[2, :2] = np.inf, -np.inf, 1
    b[3, 1, 2] = np.nan
    a[4], b[4] = (info(x).max for x in (a, b))
    c[5, 3, 3] = -np.inf
    result, report = emulated(form, form.targets[-1], a, b, c)
    assert report.ok
    assert np.isposinf(result[0, 0]).all()
    assert np.isfinite(result[0, 1:]).all()
    assert np.isnan(result[1, 0, 0])
    assert np.isnan(result[2, 0]).all()
    assert np.isnan(result[3, :, 2]).all()
    assert np.isfinite(result[3, :, 3]).all()
    if form.a != "f16" or form.d == "f16":
        # 65504² is no more than float32 holds.
        assert np.isposinf(result[4]).all()
    assert np.isneginf(result[5, 3, 3])


@pytest.mark.parametrize("form", FLOATS, ids=lambda form: form.opcode)
def test_subnormals_and_one_rounding(form: Mma) -> None:
    a, b, c = (np.zeros_like(x) for x in drawn(form, seed=3))
    smallest = {x.dtype: info(x).smallest_subnormal for x in (a, c)}
    step = 2.0**-10 if form.d == "f16" else float(np.finfo(DTYPES[form.d]).eps)
    if form.a != "tf32":
        a[0, :, 0], b[0, 0] = smallest[a.dtype], 1
    c[1] = smallest[c.dtype]
    # 1 + a quarter of a unit four times over: each alone would be lost, together they are a unit.
    c[2], a[2, :, :4], b[2, :4] = 1, 2.0**-10, step * 2.0**8
    result, _ = emulated(form, form.targets[-1], a, b, c)
    if form.a != "tf32":
        assert (result[0] == np.array(smallest[a.dtype]).astype(result.dtype)).all()
    assert (result[1] == c[1]).all()
    # float64 rounds after each product, so it stays at 1.
    assert (result[2] == (1 if form.d == "f64" else 1 + step)).all()


def with_low_bits(values: Array) -> Array:
    """Return float32 values with all bits set that tf32 lacks."""
    return (values.view(np.uint32) | 0x1FFF).view(np.float32)


def test_tf32_ignores_the_low_bits() -> None:
    form = FORMS[7]
    a, b, c = drawn(form, seed=4)
    clean, _ = emulated(form, "sm_80", a, b, c)
    dirty, _ = emulated(form, "sm_80", with_low_bits(a), with_low_bits(b), c)
    assert (clean == dirty).all()


def test_satfinite_clamps_and_without_it_sums_wrap() -> None:
    clamped, wrapping = FORMS[-1], FORMS[-2]
    for form, wanted in ((clamped, 2**31 - 1), (wrapping, -(2**31) + 3)):
        a, b, c = (np.zeros_like(x) for x in drawn(form, seed=5))
        a[:, :, 0], b[:, 0], c[...] = 2, 2, 2**31 - 1
        assert (emulated(form, "sm_80", a, b, c)[0] == wanted).all()


@EACH
def test_counts(form: Mma) -> None:
    a, b, c = drawn(form, seed=6)
    _, report = emulated(form, form.targets[-1], a, b, c)
    m, n, k = form.shape
    name = {"f64": "dmma", "s32": "imma"}.get(form.d, "hmma")
    counted = report.counters.as_dict()
    assert counted[name] == WARPS
    assert counted["matrix_flops"] == WARPS * 2 * m * n * k
    assert sum(counted[other] for other in ("hmma", "imma", "dmma")) == WARPS
    assert report.counters.nsight_names()[f"sm__inst_executed_pipe_tensor_op_{name}"] == WARPS


@pytest.mark.parametrize("schedule", [1, 2, 3])
def test_any_order_of_warps(schedule: int) -> None:
    form = FORMS[3]
    a, b, c = drawn(form, seed=7)
    assert (emulated(form, "sm_80", a, b, c, schedule=schedule)[0] == products(form, "sm_80", a, b, c)).all()


# Who takes part


def launched(text: str, *arrays: Array, threads: int = 64, target: str = "sm_90a", **options: Any) -> Report:
    """Run ``k`` on arrays that it may write to."""
    memory = Memory()
    pointers = tuple(memory.bind(f"x{n}", array, access="rw") for n, array in enumerate(arrays))
    ptx = compile_ptx(Source("matrix", "k", text), target)
    return run(ptx, Launch("matrix", "k", (1, 1, 1), (threads, 1, 1), pointers), memory, **options)


PRODUCT = (
    'asm volatile("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %2}, {%2}, {%0, %1};" '
    ': "+r"(d), "+r"(e) : "r"(x));'
)
BRANCHING = f"""extern "C" __global__ void k(unsigned* o) {{
  unsigned d = 0, e = 0, x = 0x3C003C00;
  if (CONDITION) {PRODUCT}
  o[threadIdx.x] = d + e;
}}"""


def test_whole_warps_may_branch() -> None:
    out = np.zeros(96, np.uint32)
    report = launched(BRANCHING.replace("CONDITION", "threadIdx.x / 32 != 1"), out, threads=96)
    assert report.ok
    assert report.counters.hmma == 2
    assert report.counters.matrix_flops == 2 * 2 * 16 * 8 * 8
    assert out.reshape(3, 32).any(axis=1).tolist() == [True, False, True]


@pytest.mark.parametrize("condition", ["threadIdx.x % 32 < 20", "threadIdx.x != 40"])
def test_parts_of_warps_may_not(condition: str) -> None:
    with pytest.raises(KernelFault, match=r"of the 32 threads of a warp execute 'mma\.sync") as caught:
        launched(BRANCHING.replace("CONDITION", condition), np.zeros(64, np.uint32))
    assert caught.value.hazard.kind == "partial-warp"
    assert re.search(r"thread \((20|40), 0, 0\) of block \(0, 0, 0\) does not", str(caught.value))
    assert caught.value.hazard.where == "k.cu:3"


def test_a_block_that_fills_no_warp() -> None:
    with pytest.raises(KernelFault, match=r"8 of the 32 threads .* the block has no threads for the others"):
        launched(BRANCHING.replace("CONDITION", "true"), np.zeros(64, np.uint32), threads=40)


def test_guards_of_whole_warps() -> None:
    # A guard on the instruction itself, which compilers do not write here but PTX allows.
    body = """.reg .pred p; .reg .b32 t, d, e, x; .reg .b64 a;
    mov.u32 t, %tid.x; setp.GUARD.u32 p, t, 32; mov.b32 x, 0x3C003C00; mov.b32 d, 0; mov.b32 e, 0;
    @p mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {d, e}, {x, x}, {x}, {d, e};
    ld.param.u64 a, [o]; mad.wide.u32 a, t, 4, a; st.global.u32 [a], d; ret;"""
    text = f".version 8.3\n.target sm_90a\n.address_size 64\n.entry k(.param .u64 o) {{ {body} }}"
    for guard in ("lt", "ge"):
        memory, out = Memory(), np.zeros(64, np.uint32)
        launch = Launch("k", "k", (1, 1, 1), (64, 1, 1), (memory.bind("o", out, access="rw"),))
        report = run(text.replace("GUARD", guard), launch, memory)
        assert report.counters.hmma == 1
        assert report.counters.matrix_flops == 2 * 16 * 8 * 8
        assert out.reshape(2, 32).any(axis=1).tolist() == [guard == "lt", guard == "ge"]
    memory = Memory()
    launch = Launch("k", "k", (1, 1, 1), (64, 1, 1), (memory.bind("o", np.zeros(64, np.uint32), access="rw"),))
    with pytest.raises(KernelFault, match="7 of the 32 threads"):
        run(text.replace("GUARD.u32 p, t, 32", "lt.u32 p, t, 7"), launch, memory)


@pytest.mark.parametrize(
    ("types", "a", "b", "c", "wanted"),
    [
        # 8 products of 1 and 2, or 2 and 1, alternating as the halves do, and C: 0.5 and 1.
        ("f16.f16.f16.f16", "0x40003C00", "0x3C004000", "0x3C003800", "16.5 17.0"),
        ("f32.bf16.bf16.f32", "0x40003F80", "0x3F804000", "0f3F000000", "16.5 16.5"),
        ("f32.tf32.tf32.f32", "0x40000000", "0x3F800000", "0f3F000000", "16.5 16.5"),
    ],
)
def test_immediate_operands(types: str, a: str, b: str, c: str, wanted: str) -> None:
    half = types.endswith("f16")
    registers = 2 if half else 4
    a_count, b_count = (4, 2) if "tf32" in types else (2, 1)
    d = ", ".join(f"d{n}" for n in range(registers))
    vectors = ["{" + ", ".join([x] * n) + "}" for x, n in ((a, a_count), (b, b_count), (c, registers))]
    text = f""".version 8.3\n.target sm_90a\n.address_size 64\n.entry k(.param .u64 o) {{
    .reg .{"b32" if half else "f32"} d<4>; .reg .b32 t; .reg .b64 p;
    mma.sync.aligned.m16n8k8.row.col.{types} {{{d}}}, {", ".join(vectors)};
    mov.u32 t, %tid.x; ld.param.u64 p, [o]; mad.wide.u32 p, t, 4, p; st.global.b32 [p], d1; ret; }}"""
    memory, out = Memory(), np.zeros(64, np.uint32)
    launch = Launch("k", "k", (1, 1, 1), (64, 1, 1), (memory.bind("o", out, access="w"),))
    assert run(text, launch, memory).ok
    result = out.view(np.float16 if half else np.float32).reshape(-1, 2)
    assert (result == np.array(wanted.split(), result.dtype)).all()


# What is refused

HEADER = ".version 8.3\n.target sm_90a\n.address_size 64\n"
REGISTERS = ".reg .b32 r<9>; .reg .f32 f<9>; .reg .f64 d<9>; .reg .b64 p; .reg .pred q;"


@pytest.mark.parametrize(
    ("instruction", "why"),
    [
        ("mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f16 {r0,r1,r2,r3}, {r4,r5}, {r6,r7}, {r0,r1,r2,r3};", "types"),
        ("mma.sp.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {r0,r1}, {r2,r3}, {r4,r5}, {r0,r1}, r6, 0;", "sparse"),
        ("mma.sync.aligned.m16n8k8.row.col.f32.f16.bf16.f32 {f0,f1,f2,f3}, {r0,r1}, {r2}, {f0,f1,f2,f3};", "types"),
        ("mma.sync.aligned.m16n8k8.col.col.f16.f16.f16.f16 {r0,r1}, {r2,r3}, {r4}, {r0,r1};", "modifiers"),
        ("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {r0,r1}, {r2}, {r4}, {r0,r1};", "number of its registers"),
        ("mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {r0,p}, {r2,r3}, {r4}, {r0,r1};", "width of its registers"),
        ("mma.sync.aligned;", "types"),
        ("mma;", "types"),
        ("ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {r0, r1}, [r2];", "only sm_100"),
        ("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {r0}, [r2];", "its vector"),
        ("movmatrix.sync.aligned.m8n8.b16 r0, r1;", "its shape"),
        ("wmma.mma.sync.aligned.row.col.m16n16k16.f16.f16 {r0}, {r1}, {r2}, {r3};", "do not fit"),
        ("tcgen05.wait::ld.sync.aligned;", "sm_100"),
    ],
)
def test_what_is_not_emulated_is_named(instruction: str, why: str) -> None:
    text = f"{HEADER}.entry k() {{\n{REGISTERS}\n{instruction}\nret;\n}}"
    with pytest.raises(EmulationError, match=why) as caught:
        translate(parse(text), "k")
    assert str(caught.value).startswith("PTX line 6:")
    assert instruction.split(maxsplit=1)[0].rstrip(";") in str(caught.value)
