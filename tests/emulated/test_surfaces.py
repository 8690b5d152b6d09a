"""Surfaces: loads and stores of every width and boundary mode beside NumPy, and what goes wrong with them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import matmill
from matmill import Surface, Texture
from matmill.errors import ArgumentError, EmulationError
from matmill.jit.compile import compile_ptx
from matmill.jit.source import Source

SOURCE = r"""
#define MODE(NAME, TYPE, SUFFIX, B) \
extern "C" __global__ void NAME##SUFFIX(cudaSurfaceObject_t s, cudaSurfaceObject_t d, const int2* c, int n) { \
  const int i = threadIdx.x; if (i >= n) return; const int x = c[i].x * (int)sizeof(TYPE), y = c[i].y; \
  surf2Dwrite(surf2Dread<TYPE>(s, x, y, B), d, i * (int)sizeof(TYPE), 0); } \
extern "C" __global__ void NAME##SUFFIX##w(cudaSurfaceObject_t s, cudaSurfaceObject_t d, const int2* c, int n) { \
  const int i = threadIdx.x; if (i >= n) return; \
  surf2Dwrite(surf2Dread<TYPE>(s, i * (int)sizeof(TYPE), 0), d, c[i].x * (int)sizeof(TYPE), c[i].y, B); }
#define COPY(NAME, TYPE) MODE(NAME, TYPE, trap, cudaBoundaryModeTrap) MODE(NAME, TYPE, clamp, cudaBoundaryModeClamp) \
  MODE(NAME, TYPE, zero, cudaBoundaryModeZero)
COPY(u1, unsigned char) COPY(u1x2, uchar2) COPY(u1x4, uchar4) COPY(i2, short) COPY(u2x2, ushort2) COPY(u2x4, ushort4)
COPY(f4, float) COPY(f4x2, float2) COPY(f4x4, float4) COPY(u8, unsigned long long) COPY(u8x2, ulonglong2)
extern "C" __global__ void kinds(cudaSurfaceObject_t a, cudaSurfaceObject_t b, cudaSurfaceObject_t c,
                                 cudaSurfaceObject_t d) {
  const int x = threadIdx.x, y = threadIdx.y, z = threadIdx.z;
  if (!y && !z) surf1Dwrite(surf1Dread<int>(a, 4 * x) + 1, a, 4 * x);
  if (!z) surf1DLayeredwrite(surf1DLayeredread<int>(b, 4 * x, y) + 2, b, 4 * x, y);
  surf3Dwrite(surf3Dread<int>(c, 4 * x, y, z) + 3, c, 4 * x, y, z);
  surf2DLayeredwrite(surf2DLayeredread<int>(d, 4 * x, y, z) + 4, d, 4 * x, y, z); }
extern "C" __global__ void sizes(cudaSurfaceObject_t s, unsigned* o) {
  asm("suq.width.b32 %0, [%3]; suq.height.b32 %1, [%3]; suq.array_size.b32 %2, [%3];"
      : "=r"(o[0]), "=r"(o[1]), "=r"(o[2]) : "l"(s)); }
"""
#: Kernels as users have them, whose parameters have names.
NAMED = r"""
// A box filter, whose sums slide along the rows.
__global__ void box(cudaTextureObject_t in, cudaSurfaceObject_t out, int w, int h, int r) {
  const int y = blockIdx.x * blockDim.x + threadIdx.x;
  if (y >= h) return;
  float sum = 0;
  for (int x = -r; x <= r; ++x) sum += tex2D<float>(in, x + 0.5f, y + 0.5f);
  for (int x = 0; x < w; ++x) {
    surf2Dwrite(sum / (2 * r + 1), out, x * 4, y);
    sum += tex2D<float>(in, x + r + 1.5f, y + 0.5f) - tex2D<float>(in, x - r + 0.5f, y + 0.5f);
  }
}
// One slice of a volume, blended with what is there.
__global__ void slice(cudaTextureObject_t volume, cudaSurfaceObject_t out, float z, int w, int h) {
  const int x = threadIdx.x, y = blockIdx.x;
  if (x >= w) return;
  const float v = tex3D<float>(volume, x + 0.5f, y + 0.5f, z);
  const uchar4 old = surf2Dread<uchar4>(out, x * 4, y);
  surf2Dwrite(make_uchar4(255 * v, (old.y + 1) / 2, old.z, 255), out, x * 4, y);
}
__global__ void put(cudaSurfaceObject_t out, int scale, int y) {
  surf2Dwrite(1.0f, out, scale * threadIdx.x, y);
}
__global__ void put_layer(cudaSurfaceObject_t out, int layer) {
  surf2DLayeredwrite(1.0f, out, 4 * threadIdx.x, 0, layer);
}
__global__ void again(cudaSurfaceObject_t s) {
  surf2Dwrite(1.0f, s, 4 * threadIdx.x, 0);
  surf2Dwrite(surf2Dread<float>(s, 4 * threadIdx.x, 0) + 1, s, 4 * threadIdx.x, 1);
}
__global__ void neighbours(cudaSurfaceObject_t s) {
  const float right = surf2Dread<float>(s, 4 * threadIdx.x + 4, 0, cudaBoundaryModeClamp);
  surf2Dwrite(right, s, 4 * threadIdx.x, 0);
}
__global__ void grow(const cudaSurfaceObject_t* s) {
  surf2Dwrite(surf2Dread<float>(*s, 4 * threadIdx.x, 0) + 1, *s, 4 * threadIdx.x, 0);
}
__global__ void one_place(cudaSurfaceObject_t s) { surf2Dwrite(1.0f, s, 4 * (threadIdx.x / 2), 0); }
"""
#: Names of kernels, their elements and channels.
WIDTHS = {
    "u1": ("u1", 1), "u1x2": ("u1", 2), "u1x4": ("u1", 4), "i2": ("i2", 1), "u2x2": ("u2", 2), "u2x4": ("u2", 4),
    "f4": ("f4", 1), "f4x2": ("f4", 2), "f4x4": ("f4", 4), "u8": ("u4", 2), "u8x2": ("u4", 4),
}  # fmt: skip
N, HEIGHT, WIDTH = 50, 5, 13


@cache
def ptx() -> str:
    return compile_ptx(Source("surfaces", "kinds", SOURCE), "sm_90a")


def launched(kernel: str, *args: object, threads: int | tuple[int, ...] = 64) -> Any:
    return matmill.emulate(ptx(), kernel, 1, threads, *args)


def pixels(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, channels: int) -> NDArray[Any]:
    shape = (*shape, channels) if channels > 1 else shape
    return rng.integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8).view(dtype)[..., 0]


@pytest.mark.parametrize("kernel", WIDTHS)
def test_every_width_and_boundary_mode(kernel: str) -> None:
    rng = np.random.default_rng(len(kernel))
    dtype, channels = WIDTHS[kernel]
    for mode in ("trap", "clamp", "zero"):
        low, high = (0, 1) if mode == "trap" else (-5, 2)
        at = np.stack([rng.integers(low * n, high * n, N) for n in (WIDTH, HEIGHT)], axis=1).astype(np.int32)
        inside = ((at >= 0) & (at < (WIDTH, HEIGHT))).all(axis=1)
        x, y = np.clip(at, 0, (WIDTH - 1, HEIGHT - 1)).T
        source, line = (pixels(rng, shape, dtype, channels) for shape in ((HEIGHT, WIDTH), (1, N)))
        launched(
            f"{kernel}{mode}", Surface(source, channels=channels), Surface(line, channels=channels), at, N
        ).raise_if()
        wanted = source[y, x]
        if mode == "zero":
            wanted[~inside] = 0
        assert line.tobytes() == wanted.tobytes(), mode
        # Stores: one lane for each texel, so that no two lanes race.
        flat = rng.permutation(WIDTH * HEIGHT)[: N - 4]
        at = np.concatenate([np.stack([flat % WIDTH, flat // WIDTH], axis=1), [(WIDTH, 1), (3, -1)] * 2])
        count = N - 4 if mode != "zero" else N
        expected = source.copy()
        expected[at[: N - 4, 1], at[: N - 4, 0]] = line[0, : N - 4]
        images = (Surface(line, channels=channels), Surface(source, channels=channels))
        launched(f"{kernel}{mode}w", *images, at.astype(np.int32), count).raise_if()
        assert source.tobytes() == expected.tobytes(), mode


def test_stores_are_clamped_too() -> None:
    line, out = np.full((1, 2), 7, np.float32), np.zeros((3, 4), np.float32)
    launched("f4clampw", Surface(line), Surface(out), np.array([(9, -2), (-1, 9)], np.int32), 2).raise_if()
    assert np.argwhere(out == 7).tolist() == [[0, 3], [2, 0]]


def test_dimensions_and_layers() -> None:
    rng = np.random.default_rng(1)
    shapes = ((7,), (5, 7), (3, 5, 7), (3, 5, 7))
    arrays = [rng.integers(0, 100, shape).astype(np.int32) for shape in shapes]
    before = [each.copy() for each in arrays]
    surfaces = [Surface(each, layered=n in {1, 3}) for n, each in enumerate(arrays)]
    report = launched("kinds", *surfaces, threads=(7, 5, 3)).raise_if()
    for n, (one, two) in enumerate(zip(before, arrays, strict=True)):
        assert (two == one + n + 1).all()
    # 105 threads are four warps, the first 7 are in one of them, the first 35 in two.
    assert report.counters.surface_load_requests == report.counters.surface_store_requests == 1 + 2 + 4 + 4
    sizes = np.zeros(3, np.uint32)
    launched("sizes", surfaces[3], sizes, threads=1).raise_if()
    assert sizes.tolist() == [7, 5, 3]


def test_words_wider_than_a_texel_and_rows_of_any_size() -> None:
    pixels_, out = np.arange(3 * 9, dtype=np.uint8).reshape(3, 9), np.zeros((1, 4), np.float32)
    at = np.array([(0, 0), (1, 0), (0, 1), (1, 2)], np.int32)
    launched("f4trap", Surface(pixels_), Surface(out), at, 4).raise_if()
    assert out.tobytes() == b"".join(pixels_[y, 4 * x : 4 * x + 4].tobytes() for x, y in at)
    beyond = launched("f4trap", Surface(pixels_), Surface(out), np.array([(2, 1)], np.int32), 1)
    assert "x = 8 B, y = 1, outside its 9 B x 3" in str(beyond.hazards[0])


# As public code uses surfaces


def test_a_box_filter_that_writes_a_surface() -> None:
    image = np.random.default_rng(2).random((9, 14), np.float32)
    out = np.zeros_like(image)
    matmill.emulate(NAMED, "box", 1, 32, Texture(image), Surface(out), 14, 9, 2).raise_if()
    padded = np.pad(image, ((0, 0), (2, 2)), mode="edge")
    np.testing.assert_allclose(out, np.lib.stride_tricks.sliding_window_view(padded, 5, axis=1).mean(axis=2), rtol=1e-5)


def test_a_slice_of_a_volume() -> None:
    rng = np.random.default_rng(3)
    volume, out = rng.random((4, 5, 7), np.float32), rng.integers(0, 256, (5, 7, 4)).astype(np.uint8)
    before = out.copy()
    texture = Texture(volume, filter="linear")
    matmill.emulate(NAMED, "slice", 5, 32, texture, Surface(out, channels=4), 1.75, 7, 5).raise_if()
    between = (0.75 * volume[1].astype(float) + 0.25 * volume[2]).astype(np.float32)  # 1.75 is 0.25 beyond a centre
    assert (out[..., 0] == (np.float32(255) * between).astype(np.uint8)).all()
    assert (out[..., 1] == (before[..., 1].astype(int) + 1) // 2).all()
    assert (out[..., 2:] == np.stack([before[..., 2], np.full((5, 7), 255)], axis=2)).all()


# Mistakes


def told(kernel: str, threads: int, *args: object) -> list[str]:
    return [str(each) for each in matmill.emulate(NAMED, kernel, 1, threads, *args).hazards]


def test_accesses_outside_end_the_run() -> None:
    out = np.zeros((3, 5), np.float32)
    (message,) = told("put", 6, Surface(out), 4, 2)
    start = (
        "error: out-of-bounds at kernel.cu:22: put: thread (5, 0, 0) of block (0, 0, 0) writes 4 bytes of the surface "
    )
    assert message.startswith(start + "out at x = 20 B, y = 2, outside its 20 B x 3, in 'sust.b.2d.b32.trap")
    (message,) = told("put", 5, Surface(out), 4, -1)
    assert "y = -1, outside its 20 B x 3" in message
    (message,) = told("put", 2, Surface(out), 2, 0)
    assert "error: misaligned" in message
    assert "writes 4 bytes of the surface out at x = 2 B, which is no multiple of 4" in message
    (message,) = told("put_layer", 2, Surface(np.zeros((2, 3, 5), np.float32), layered=True), 2)
    assert "at x = 0 B, y = 0, layer = 2, outside its 20 B x 3, 2 layers" in message
    out.flags.writeable = False
    (message,) = told("put", 5, Surface(out), 4, 0)
    assert "error: read-only" in message
    (message,) = told("put", 5, Surface(np.zeros((2, 3, 5), np.float32)), 4, 0)
    assert "uses the surface out, which is 3-D, as a 2-D surface" in message


def test_what_was_stored_in_the_launch_may_not_be_read() -> None:
    surface = np.zeros((2, 32), np.float32)
    (message,) = told("again", 32, Surface(surface))
    assert "error: texture-written" in message
    assert "reads 4 bytes at s[0][0], which this launch has stored to, through the surface s" in message
    assert (surface[1] == 2).all()


def test_races_in_surfaces() -> None:
    (message,) = told("neighbours", 64, Surface(np.zeros((1, 64), np.float32)))
    assert "error: race" in message
    assert "read by thread" in message
    assert told("one_place", 32, Surface(np.zeros((1, 32), np.float32))) == []
    (message,) = told("put", 64, Surface(np.zeros((1, 64), np.float32)), 0, 0)
    assert "note: same-value" in message


def test_a_surface_that_nobody_wrote() -> None:
    surface = np.full((1, 32), np.nan, np.float32)
    report = matmill.emulate(NAMED, "neighbours", 1, 32, Surface(surface), initcheck=True)
    assert "uninitialised-global" in {each.kind for each in report.hazards}
    assert matmill.emulate(NAMED, "one_place", 1, 32, Surface(surface), initcheck=True).ok


def test_a_dependent_launch_waits_before_it_reads() -> None:
    surface = Surface(np.zeros((1, 32), np.float32))
    report = matmill.emulate(NAMED, "neighbours", 1, 32, surface, pdl=True)
    told_ = [str(each) for each in report.hazards if each.kind == "dependent-launch"]
    assert "reads 4 bytes at s[0][1] before griddepcontrol.wait" in told_[0]
    assert "writes 4 bytes at s[0][0] before griddepcontrol.wait" in told_[1]


def test_what_no_surface_is() -> None:
    with pytest.raises(ArgumentError, match="rows without gaps"):
        Surface(np.zeros((4, 6), np.float32)[:, ::2])
    with pytest.raises(ArgumentError, match="Pass a Surface"):
        told("put", 1, Texture(np.zeros((4, 4), np.float32)), 4, 0)
    text = """.version 8.0 .target sm_90 .address_size 64
.entry k(.param .u64 p) { .reg .b32 x; .reg .b64 h; ld.param.u64 h, [p]; mov.b32 x, 0; sust.p.1d.b32.trap [h, {x}], {x};
ret; }"""
    with pytest.raises(EmulationError, match="a formatted access"):
        matmill.emulate(text, "k", 1, 1, Surface(np.zeros(4, np.float32)))


def test_other_orders_run_on_copies(emulate: Any) -> None:
    pixels_ = np.zeros((1, 32), np.float32)
    emulate(NAMED, "grow", 1, 32, np.array([Surface(pixels_)], object), schedules=3)
    assert (pixels_ == 1).all()
    records = np.array([(Surface(pixels_), 1)], np.dtype([("s", object), ("n", "i4")], align=True))
    emulate(NAMED, "grow", 1, 32, records, schedules=3)
    assert (pixels_ == 2).all()
