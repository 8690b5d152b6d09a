"""Cases: mma.sync of every shape and type, and the moves of 8x8 matrices.

Each warp makes one product of fragments that are stored lane by lane, so a case needs no layout. A third
of the warps have small integers, whose sums are exact: they prove the layout. A third have random numbers of very
different size from warp to warp, which prove how sums are truncated. A third have infinities, NaN, zeros of both signs
and subnormals strewn in. All bits must be equal, but for those of a NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from agreement.case import POISON, Array, Case

WARPS = 96
_WORD = POISON & 0xFFFFFFFF
TYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16), "tf32": np.dtype(np.float32),
    "f32": np.dtype(np.float32), "f64": np.dtype(np.float64), "s8": np.dtype(np.int8), "u8": np.dtype(np.uint8),
    "s32": np.dtype(np.int32), "e4m3": np.dtype(ml_dtypes.float8_e4m3fn), "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}  # fmt: skip


@dataclass(frozen=True)
class Mma:
    """An instruction: shape, types of A, B and of C and D."""

    shape: tuple[int, int, int]
    a: str
    b: str
    d: str
    extra: str = ""

    @property
    def opcode(self) -> str:
        """The opcode with all its modifiers."""
        m, n, k = self.shape
        before, after = ("", self.extra) if "popc" in self.extra else (self.extra, "")
        return f"mma.sync.aligned.m{m}n{n}k{k}.row.col{before}.{self.d}.{self.a}.{self.b}.{self.d}{after}"

    @property
    def elements(self) -> tuple[int, int, int]:
        """Elements of A, B and C that one lane holds."""
        m, n, k = self.shape
        return m * k // 32, n * k // 32, m * n // 32

    @property
    def registers(self) -> tuple[int, int, int, int]:
        """Registers of A, B, C and D that one lane holds: of 8 bytes for f64, else of 4."""
        size = 64 if self.a == "f64" else 32
        bits = zip(self.elements, (self.a, self.b, self.d), strict=True)
        a, b, c = (count * bits_of(kind) // size for count, kind in bits)
        return a, b, c, c


def bits_of(kind: str) -> int:
    """Return the size of an element."""
    return {"s4": 4, "u4": 4, "b1": 1}.get(kind) or TYPES[kind].itemsize * 8


FORMS = (
    Mma((16, 8, 8), "f16", "f16", "f16"), Mma((16, 8, 8), "f16", "f16", "f32"),
    Mma((16, 8, 16), "f16", "f16", "f16"), Mma((16, 8, 16), "f16", "f16", "f32"),
    Mma((16, 8, 8), "bf16", "bf16", "f32"), Mma((16, 8, 16), "bf16", "bf16", "f32"),
    Mma((16, 8, 4), "tf32", "tf32", "f32"), Mma((16, 8, 8), "tf32", "tf32", "f32"),
    Mma((8, 8, 4), "f64", "f64", "f64"), Mma((16, 8, 4), "f64", "f64", "f64"),
    Mma((16, 8, 8), "f64", "f64", "f64"), Mma((16, 8, 16), "f64", "f64", "f64"),
    Mma((8, 8, 16), "s8", "u8", "s32"), Mma((16, 8, 16), "u8", "s8", "s32"), Mma((16, 8, 32), "s8", "s8", "s32"),
    Mma((16, 8, 32), "u8", "u8", "s32", ".satfinite"), Mma((16, 8, 32), "u8", "u8", "s32"),
    Mma((16, 8, 32), "e4m3", "e4m3", "f32"), Mma((16, 8, 32), "e5m2", "e4m3", "f32"),
    Mma((16, 8, 32), "e5m2", "e5m2", "f16"), Mma((8, 8, 16), "s8", "s8", "s32"), Mma((8, 8, 16), "u8", "s8", "s32"),
    Mma((16, 8, 16), "s8", "u8", "s32"),
)  # fmt: skip


#: What only the emulator runs: Hopper has no tensor cores for 4-bit integers and bits, nor 16 products of 8-bit floats.
LATER = (
    Mma((8, 8, 32), "s4", "s4", "s32"), Mma((16, 8, 32), "u4", "s4", "s32"),
    Mma((16, 8, 64), "s4", "u4", "s32", ".satfinite"), Mma((16, 8, 64), "u4", "u4", "s32"),
    Mma((8, 8, 128), "b1", "b1", "s32", ".xor.popc"), Mma((16, 8, 128), "b1", "b1", "s32", ".and.popc"),
    Mma((16, 8, 256), "b1", "b1", "s32", ".xor.popc"), Mma((16, 8, 16), "e4m3", "e5m2", "f32"),
    Mma((16, 8, 16), "e4m3", "e4m3", "f16"),
)  # fmt: skip


def _values(kind: str, elements: int, rng: np.random.Generator, *, factor: bool) -> Array:
    """Return fragments of one operand: [WARPS, 32, elements], each third of the warps of its own kind."""
    third = WARPS // 3
    if kind not in TYPES:
        return rng.integers(0, 256, (WARPS, 32, elements * bits_of(kind) // 8), np.uint8)
    dtype, shape = TYPES[kind], (WARPS, 32, elements)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        values = rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
        values[:third] %= 5
        if not factor:
            # Sums beside the largest and the smallest number.
            values[2 * third :] = rng.choice([limits.min, limits.max], (third, 32, elements))
        return values
    # Most sums of small types are neither infinite nor 0.
    reach = 3 if dtype == np.float16 or dtype.itemsize == 1 else 20
    scale = 2.0 ** rng.integers(-reach, reach + 1, (WARPS, 1, 1))
    values = (rng.uniform(-1, 1, shape) * scale).astype(dtype)
    values[:third] = rng.integers(-4, 5, (third, 32, elements))
    last = values[2 * third :]
    odd = [np.inf, -np.inf, np.nan, 0.0, -0.0]
    if kind != "tf32":
        smallest = float(np.array([1], f"u{dtype.itemsize}").view(dtype)[0])
        odd += [smallest, -smallest * 5]
    chosen = rng.random(last.shape) < (0.02 if factor else 0.05)
    last[chosen] = rng.choice(np.array(odd), int(chosen.sum())).astype(dtype)
    return values


def source_of(form: Mma) -> str:
    """Write a kernel of one product for each warp, on registers ``a``, ``b`` and ``c`` into ``o``."""
    double = form.a == "f64"
    word, constraint, bits = ("double", "d", "") if double else ("unsigned", "r", "")
    a, b, c, _ = form.registers
    sums, letter = ("float", "f") if form.d == "f32" else (word, constraint)
    read, write = ("__uint_as_float", "__float_as_uint") if form.d == "f32" else (bits, bits)
    lists, at = [], 0
    for count in (c, a, b, c):
        lists.append("{" + ", ".join(f"%{at + r}" for r in range(count)) + "}")
        at += count
    inputs = [f'"{constraint}"(a[i * {a} + {r}])' for r in range(a)] + [
        f'"{constraint}"(b[i * {b} + {r}])' for r in range(b)
    ]
    inputs += [f'"{letter}"({read}(c[i * {c} + {r}]))' for r in range(c)]
    outputs = ", ".join(f'"={letter}"(d[{r}])' for r in range(c))
    return f"""extern "C" __global__ void k(const {word}* a, const {word}* b, const {word}* c, {word}* o) {{
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  {sums} d[{c}];
  asm volatile("{form.opcode} {", ".join(lists)};" : {outputs} : {", ".join(inputs)});
  for (int r = 0; r < {c}; r++) o[i * {c} + r] = {write}(d[r]);
}}"""


def multiply(form: Mma) -> Case:
    double, c = form.a == "f64", form.registers[2]
    rng = np.random.default_rng(40 + (*FORMS, *LATER).index(form))
    kinds = (form.a, form.b, form.d)
    parts = [
        _values(t, n, rng, factor=index < 2) for index, (t, n) in enumerate(zip(kinds, form.elements, strict=True))
    ]
    carrier = np.dtype(np.uint64 if double else np.uint32)

    def arrays() -> dict[str, Array]:
        result = {name: x.reshape(-1).view(carrier).copy() for name, x in zip("abc", parts, strict=True)}
        return {**result, "o": np.full(WARPS * 32 * c, POISON if double else _WORD, carrier)}

    return Case(
        form.opcode, source_of(form), arrays, ("o",), (WARPS // 4, 1, 1), differences=_comparison(form)
    )  # fmt: skip


def _comparison(form: Mma) -> Callable[[dict[str, Array], dict[str, Array]], list[str]]:
    """Say how the results of one instruction are compared."""
    dtype = TYPES[form.d]
    kinds = ("small integers", "random numbers", "odd numbers")

    def differences(gpu: dict[str, Array], emulator: dict[str, Array]) -> list[str]:
        x, y = (side["o"].view(dtype).reshape(WARPS, -1) for side in (gpu, emulator))
        word = f"u{dtype.itemsize}"
        wrong = (x.view(word) != y.view(word)) & ~(np.isnan(x) & np.isnan(y))
        return [
            f"{form.opcode}: {int(part.sum())} of {part.size} with {kind} differ, first: "
            f"GPU {x[index]!r}, emulator {y[index]!r} in warp {index[0]}"
            for kind, first in zip(kinds, range(0, WARPS, WARPS // 3), strict=True)
            if (part := wrong[first : first + WARPS // 3]).any()
            for index in [(first + int(np.argwhere(part)[0][0]), int(np.argwhere(part)[0][1]))]
        ]

    return differences


def _moves() -> Case:
    """Return ``ldmatrix``, ``stmatrix`` and ``movmatrix`` in every form, with rows in any order."""
    steps, n = [], 0
    for count in (1, 2, 4):
        for trans in ("", ".trans"):
            form = f".sync.aligned.m8n8.x{count}{trans}.shared.b16"
            registers = ", ".join(f"%{r}" for r in range(count))
            gets = ", ".join(f'"=r"(d[{r}])' for r in range(count))
            gives = ", ".join(f'"r"(d[{r}])' for r in range(count))
            steps.append(f"""{{ unsigned d[4] = {{}};
    asm volatile("ldmatrix{form} {{{registers}}}, [%{count}];" : {gets} : "r"(base + at[i] * 16) : "memory");
    for (int r = 0; r < 4; r++) o[({n} * n + i) * 4 + r] = d[r];
    for (int r = 0; r < 4; r++) d[r] = x[i * 4 + r];
    __syncthreads();
    asm volatile("stmatrix{form} [%{count}], {{{registers}}};" :: {gives}, "r"(base + at[i] * 16) : "memory");
    __syncthreads(); }}
""")
            n += 1
    source = f"""extern "C" __global__ void k(const unsigned* x, const unsigned* at, unsigned* o, unsigned* p, int n) {{
  __shared__ alignas(128) unsigned room[1024];
  const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  const unsigned base = unsigned(__cvta_generic_to_shared(room));
  for (int j = t; j < 1024; j += blockDim.x) room[j] = x[j] * 7;
  __syncthreads();
  {"".join(steps)}
  unsigned d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(x[i]));
  o[{n} * n * 4 + i] = d;
  for (int j = t; j < 1024; j += blockDim.x) p[blockIdx.x * 1024 + j] = room[j];
}}"""
    rng = np.random.default_rng(60)
    data = rng.integers(0, 1 << 32, 512 * 4, dtype=np.uint32)
    # A row for each of the 128 threads of a block, which has 256 rows, no two the same.
    rows = np.concatenate([rng.permutation(256)[:128] for _ in range(4)]).astype(np.uint32)

    def arrays() -> dict[str, Array]:
        return {
            "x": data.copy(),
            "at": rows.copy(),
            "o": np.full(512 * 4 * n + 512, _WORD, np.uint32),
            "p": np.full(4096, _WORD, np.uint32),
        }

    return Case("moves of matrices", source, arrays, ("o", "p"), (4, 1, 1), values=(np.int32(512),))


CASES = (*(multiply(form) for form in FORMS), _moves())
