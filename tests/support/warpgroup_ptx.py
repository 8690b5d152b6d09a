"""wgmma for tests: kernels in PTX, operands laid out element by element as the PTX ISA has them, and their products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from matmill.emulator import Report
from support.ptx_tools import Options, entry, launch

Array = NDArray[Any]
THREADS, ROWS = 128, 64
ROW_BYTES = 32
_SIZES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
_SWIZZLE_CODES = {0: 0, 128: 1, 64: 2, 32: 3}
DTYPES: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16), "tf32": np.dtype(np.float32),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn), "e5m2": np.dtype(ml_dtypes.float8_e5m2), "s8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8), "f32": np.dtype(np.float32), "s32": np.dtype(np.int32),
}  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """How an operand is stored: its major, its swizzle in bytes, its distances, and where in its tile it starts."""

    swizzle: int = 128
    mn_major: bool = False
    leading: int = 0
    stride: int = 0
    step: int = 0

    def tile(self, rows: int) -> Layout:
        """Return a tile with the distances of tiles as TMA leaves them, where none are given."""
        if self.mn_major:
            leading, stride = (ROW_BYTES // 2 * self.swizzle, 8 * self.swizzle) if self.swizzle else (128, 256)
        else:
            leading, stride = (16, 8 * self.swizzle) if self.swizzle else (16 * rows, 128)
        return Layout(self.swizzle, self.mn_major, self.leading or leading, self.stride or stride, self.step)

    def address(self, start: int, mn: int, k: int, size: int) -> int:
        """Say where element (mn, k) of ``size`` bytes is."""
        span, unit = self.swizzle, 16 // size
        if not self.mn_major:
            at = mn % 8 * (span or 16) + mn // 8 * self.stride
            at += k * size if span else k % unit * size + k // unit * self.leading
        elif span:
            wide = span // size
            at = mn % wide * size + mn // wide * self.leading + k % 8 * span + k // 8 * self.stride
        else:
            at = mn % unit * size + mn // unit * self.stride + k % 8 * 16 + k // 8 * self.leading
        at += start
        return at ^ (at // 128 % (span // 16) * 16) if span else at

    def descriptor(self, start: int) -> int:
        """Return the matrix descriptor of a tile that starts there."""
        return start >> 4 | self.leading >> 4 << 16 | self.stride >> 4 << 32 | _SWIZZLE_CODES[self.swizzle] << 62


@dataclass(frozen=True)
class Form:
    """One wgmma.mma_async; A is in registers where it has no layout. ``signs`` are those of A and B."""

    n: int
    a: str
    d: str
    b: str = ""
    a_layout: Layout | None = Layout()
    b_layout: Layout = Layout()
    signs: tuple[int, int] = (1, 1)
    extra: str = ""

    @property
    def b_type(self) -> str:
        """The type of B: that of A where it is not said."""
        return self.b or self.a

    @property
    def k(self) -> int:
        """K of the instruction."""
        return ROW_BYTES // _SIZES[self.a]

    @property
    def sums(self) -> int:
        """Registers of D per thread."""
        return self.n // (4 if self.d == "f16" else 2)

    def instruction(self, scale: str = "1", descriptors: tuple[str, str] = ("da", "db")) -> str:
        """Return the instruction on registers d0, d1, … and a0 to a3 or the descriptors."""
        left = "{a0, a1, a2, a3}" if self.a_layout is None else descriptors[0]
        immediates = [] if self.d == "s32" else [str(s) for s in self.signs]
        if self.a in {"f16", "bf16"}:
            layouts = [self.b_layout] if self.a_layout is None else [self.a_layout, self.b_layout]
            immediates += [str(int(layout.mn_major)) for layout in layouts]
        operands = [registers(self.sums), left, descriptors[1], scale, *immediates]
        types = f"{self.extra}.{self.d}.{self.a}.{self.b_type}"
        return f"wgmma.mma_async.sync.aligned.m64n{self.n}k{self.k}{types} {', '.join(operands)};"


def registers(count: int, name: str = "d") -> str:
    """Return a vector operand of registers."""
    return "{" + ", ".join(f"{name}{i}" for i in range(count)) + "}"


def kernel(body: str, sums: int) -> str:
    """Write a kernel that fills shared memory and registers, runs ``body``, and stores registers d0, d1 and so on.

    ``body`` may use predicate q, which is false, and registers t (the thread), i and w0 to w3.
    Parameters: the sums (uint32[threads, sums], in and out), the bytes of shared memory (a multiple of 16, their number
    the last parameter), A's registers (uint32[threads, 4]), and the descriptors of A and B relative to shared memory.
    """
    each = range(sums)
    return entry(
        f"""
        .reg .b32 t, base, i, limit, w<4>, a<4>, d<{max(sums, 8)}>; .reg .b64 at; .reg .pred p, q;
        mov.u32 t, %tid.x; mov.u32 base, memory; cvt.u32.u64 limit, bytes; mul.lo.u32 i, t, 16;
        Fill: setp.ge.u32 p, i, limit; @p bra Filled;
        cvt.u64.u32 at, i; add.u64 at, at, image; ld.global.v4.u32 {{w0, w1, w2, w3}}, [at];
        add.u32 limit, base, i; st.shared.v4.u32 [limit], {{w0, w1, w2, w3}}; cvt.u32.u64 limit, bytes;
        mov.u32 w0, %ntid.x; mad.lo.u32 i, w0, 16, i; bra Fill;
        Filled: fence.proxy.async.shared::cta; bar.sync 0;
        shr.u32 i, base, 4; cvt.u64.u32 at, i; add.u64 da, da, at; add.u64 db, db, at;
        setp.gt.u32 q, t, t; mad.wide.u32 at, t, 16, factors; ld.global.v4.u32 {{a0, a1, a2, a3}}, [at];
        mad.wide.u32 at, t, {4 * sums}, sums;
        {" ".join(f"ld.global.u32 d{i}, [at+{4 * i}];" for i in each)}
        {body}
        {" ".join(f"st.global.u32 [at+{4 * i}], d{i};" for i in each)}
        """,
        ("sums", "image", "factors", "da", "db", "bytes"),
        ".extern .shared .align 1024 .b8 memory[];",
    )


def once(form: Form, scale: str = "1") -> str:
    """Return the body that makes one product and waits for it."""
    return (
        f"wgmma.fence.sync.aligned; {form.instruction(scale)} wgmma.commit_group.sync.aligned; "
        "wgmma.wait_group.sync.aligned 0;"
    )


@dataclass
class Operands:
    """The matrices of a product in memory: sums and A in registers, both in shared memory, and their descriptors."""

    sums: Array
    image: Array
    factors: Array
    descriptors: tuple[int, int]


def operands(form: Form, a: Array, b: Array, c: Array) -> Operands:
    """Return a (64 x k), B (n x k) and C (64 x n) as the kernel wants them."""
    size = _SIZES[form.a]
    places: dict[int, bytes] = {}
    descriptors, start = [], 0
    for matrix, layout in ((a, form.a_layout), (b, form.b_layout)):
        if layout is not None:
            tile = layout.tile(len(matrix))
            first = start + tile.step
            descriptors.append(tile.descriptor(first))
            for (mn, k), value in np.ndenumerate(matrix):
                places[tile.address(first, mn, k, size)] = value.tobytes()
            start = (max(places) // 1024 + 1) * 1024
        else:
            descriptors.append(0)
    image = np.zeros(start, np.uint8)
    for at, data in places.items():
        image[at : at + size] = np.frombuffer(data, np.uint8)
    sums = c[_sum_places(form.n)].view(np.uint32)
    return Operands(sums, image, _factors(form, a), (descriptors[0], descriptors[1]))


def _sum_places(n: int) -> tuple[Array, Array]:
    """Return row and column of each sum of each thread, as [128, n / 2]."""
    t, i = np.arange(THREADS)[:, None], np.arange(n // 2)
    return 16 * (t // 32) + t % 32 // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (t % 4) + i % 2


def _factors(form: Form, a: Array) -> Array:
    """Return a as registers, uint32[128, 4]: the PTX ISA's rule for elements of 1, 2 and 4 bytes."""
    each = 4 // _SIZES[form.a]
    t, j = np.arange(THREADS)[:, None], np.arange(4 * each)
    rows = 16 * (t // 32) + t % 32 // 4 + 8 * (j // each % 2)
    columns = t % 4 * each + j % each + 4 * each * (j // (2 * each))
    return np.ascontiguousarray(a[rows, columns]).view(np.uint32)


def execute(ptx: str, held: Operands, *, block: int = THREADS, spare: int = 0, **options: Any) -> tuple[Array, Report]:
    """Return the sums (uint32[threads, registers]) after a kernel that gets ``spare`` more bytes, and its report."""
    out = np.ascontiguousarray(held.sums)
    arrays = {"sums": out, "image": held.image, "factors": held.factors}
    values = [np.uint64(v) for v in (*held.descriptors, len(held.image))]
    chosen: Options = {"races": False, **options}  # type: ignore[typeddict-item] # options of run
    return out, launch(ptx, arrays, *values, block=(block, 1, 1), shared=len(held.image) + spare, options=chosen)


def matrix(form: Form, sums: Array) -> Array:
    """Return D (64 x n) of the registers of all threads."""
    values = sums.view(DTYPES[form.d])
    out = np.empty((ROWS, form.n), values.dtype)
    out[_sum_places(form.n)] = values
    return out


def multiplied(form: Form, a: Array, b: Array, c: Array, *, scale: str = "1", **options: Any) -> Array:
    """Return D of one instruction, from a kernel in which the emulator finds nothing wrong."""
    out, report = execute(kernel(once(form, scale), form.sums), operands(form, a, b, c), **options)
    assert report.hazards == ()
    return matrix(form, out)
