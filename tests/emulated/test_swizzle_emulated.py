"""The swizzle lab against the emulator, kernel by kernel, and against the accesses that an H200 counted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from matmill.analysis.swizzle import addresses, cost, layout, requests
from matmill.dtypes import ELEMENTWISE, F16, F32, F64, DType
from support.ptx_tools import compile_ptx, launch

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "h200_warp_counters.json").read_text())

# One warp stores the matrix element by element, in the layout that its arguments describe, and reads all of it by one
# access. What it read goes to `out` by row and column, so a wrong place shows as a wrong element.
SOURCE = """
extern "C" __global__ void k(Element* out, int rows, int columns, int pitch, int panel, int mask, int shift) {
  extern __shared__ __align__(1024) unsigned char bytes[];
  Element* tile = reinterpret_cast<Element*>(bytes);
  auto place = [&](int r, int c) {
    int plain = panel ? (c / panel * rows + r) * panel + c % panel : r * pitch + c;
    int read = plain & mask;
    return plain ^ (shift < 0 ? read << -shift : read >> shift);
  };
  const int lane = threadIdx.x, vector = 16 / sizeof(Element);
  for (int i = lane; i < rows * columns; i += 32) tile[place(i / columns, i % columns)] = static_cast<Element>(i);
  __syncthreads();
#if ACCESS == 0
  for (int r = 0; r < rows; ++r)
    for (int c = lane; c < columns; c += 32) out[r * columns + c] = tile[place(r, c)];
#elif ACCESS == 1
  for (int c = 0; c < columns; ++c)
    for (int r = lane; r < rows; r += 32) out[r * columns + c] = tile[place(r, c)];
#elif ACCESS == 2
  for (int i = lane * vector; i < rows * columns; i += 32 * vector) {
    uint4 v = *reinterpret_cast<const uint4*>(&tile[place(i / columns, i % columns)]);
    const Element* each = reinterpret_cast<const Element*>(&v);
    for (int e = 0; e < vector; ++e) out[i + e] = each[e];
  }
#else
  for (int i = lane; i < rows * (columns / 8); i += 32) {
    unsigned v[4], at = static_cast<unsigned>(__cvta_generic_to_shared(&tile[place(i % rows, i / rows * 8)]));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(at) : "memory");
    for (int m = 0; m < 4; ++m) {
      int first = i - lane + 8 * m, r = first % rows + lane / 4, c = first / rows * 8 + lane % 4 * 2;
      out[r * columns + c] = static_cast<Element>(v[m] & 0xffff);
      out[r * columns + c + 1] = static_cast<Element>(v[m] >> 16);
    }
  }
#endif
}
"""
CXX = {2: "unsigned short", 4: "unsigned", 8: "unsigned long long"}
ORDER = ("row", "column", "vec16", "ldmatrix")

CASES = [
    *((access, 64, 64, F16, name) for access in ORDER for name in ("none", "3,3,3", "128B", "pad:8")),
    ("row", 64, 64, F16, "2,0,2"),
    ("column", 64, 64, F16, "5,1,5"),
    ("column", 64, 64, F16, "pad:2"),
    *(("column", 32, 32, F32, name) for name in ("none", "5,0,5", "3,2,3", "pad:1", "2,0,-5")),
    ("column", 40, 20, F32, "pad:3"),
    ("row", 5, 50, F32, "none"),
    *(("column", 32, 32, F64, name) for name in ("none", "pad:1", "4,0,5")),
    ("vec16", 16, 36, F32, "pad:4"),
    ("vec16", 32, 16, F32, "64B"),
    ("ldmatrix", 64, 32, F16, "none"),
    ("ldmatrix", 64, 32, F16, "64B"),
    ("ldmatrix", 32, 64, F16, "32B"),
    ("ldmatrix", 32, 128, F16, "128B"),
    ("ldmatrix", 16, 32, F16, "pad:8"),
]


@pytest.mark.parametrize(("access", "rows", "columns", "dtype", "name"), CASES)
def test_the_emulator_counts_what_the_lab_says(access: str, rows: int, columns: int, dtype: DType, name: str) -> None:
    made = layout(rows, columns, dtype, name)
    ptx = compile_ptx(SOURCE, f"-DElement={CXX[dtype.itemsize]}", f"-DACCESS={ORDER.index(access)}")
    out = np.zeros((rows, columns), f"u{dtype.itemsize}")
    sizes = (rows, columns, columns + made.pad, made.panel, made.swizzle.mask, made.swizzle.shift)
    report = launch(ptx, {"out": out}, *(np.int32(size) for size in sizes), shared=made.bytes)
    assert report.ok
    np.testing.assert_array_equal(out, np.arange(rows * columns, dtype=out.dtype).reshape(rows, columns))
    result = cost(made, access)
    counted = (report.counters.shared_load_wavefronts, report.counters.shared_load_wavefronts_ideal)
    assert counted == (result.actual.sum(), result.ideal.sum())
    assert report.counters.shared_load_requests == len(result.actual)


@pytest.mark.parametrize(
    ("op", "name", "access", "shape", "dtype", "text"),
    [
        ("ld4", "row128B", "column", (32, 32), "float32", "none"),
        ("ld4", "row144B", "column", (32, 32), "float32", "pad:4"),
        ("ld4", "row512B", "column", (32, 128), "float32", "none"),
        ("ld4", "stride2", "column", (32, 2), "float32", "none"),
        ("ld4", "stride9", "column", (32, 8), "float32", "pad:1"),
        ("ld4", "stride17", "column", (32, 16), "float32", "pad:1"),
        ("ld8", "row512B", "column", (32, 64), "float64", "none"),
        ("ld8", "stride3", "column", (32, 2), "float64", "pad:1"),
        ("st8", "row128B", "column", (32, 16), "float64", "none"),
        ("st8", "stride1", "row", (1, 32), "float64", "none"),
        ("st8", "row144B", "column", (32, 16), "float64", "pad:2"),
        ("ldm4", "packed16B", "ldmatrix", (32, 8), "float16", "none"),
        ("ldm4", "pitch128", "ldmatrix", (32, 64), "float16", "none"),
        ("ldm4", "pitch80", "ldmatrix", (32, 32), "float16", "pad:8"),
        ("ldm4", "pitch256", "ldmatrix", (32, 128), "float16", "none"),
        ("ldm4", "swz128", "ldmatrix", (32, 64), "float16", "128B"),
        ("ldm4", "swz128", "ldmatrix", (32, 64), "float16", "3,3,3"),
        ("ldm4t", "pitch64", "ldmatrix", (32, 32), "float16", "none"),
        ("ldm4t", "pitch144", "ldmatrix", (32, 64), "float16", "pad:8"),
        ("ldm4t", "swz64", "ldmatrix", (32, 32), "float16", "64B"),
    ],
)
def test_an_h200_counted_what_the_lab_says(  # noqa: PLR0917 — a case's columns
    op: str, name: str, access: str, shape: tuple[int, int], dtype: str, text: str
) -> None:
    (case,) = (each for each in GOLDEN if (each["op"], each["name"]) == (op, name))
    result = layout(*shape, ELEMENTWISE[dtype], text)
    asked = requests(*shape, ELEMENTWISE[dtype], access).first(1)
    assert asked.active[0].all()
    where = addresses(result, asked)
    assert (where[0].tolist(), case["mask"]) == (case["offsets"], 2**32 - 1)
    actual, ideal = asked.wavefronts(where, store=op.startswith("st"))
    assert (int(actual[0]), int(actual[0] - ideal[0])) == (case["wavefronts"], case["conflicts"])
