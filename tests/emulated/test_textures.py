"""Textures: every fetch beside a reference written from the CUDA C++ programming guide, element by element.

The references loop over lanes in exact arithmetic of fractions or float64, and share nothing with the emulator.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import matmill
from matmill import Texture
from matmill.jit.compile import compile_ptx
from matmill.jit.source import Source

SOURCE = r"""
#define LANE const int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;
#define KERNEL(NAME, TYPE) extern "C" __global__ void NAME(cudaTextureObject_t t, TYPE* o, const float4* c, int n) \
  { LANE const float4 p = c[i]; const int layer = (int)p.w;
KERNEL(f1d, float) o[i] = tex1D<float>(t, p.x); }
KERNEL(f2d, float) o[i] = tex2D<float>(t, p.x, p.y); }
KERNEL(f3d, float) o[i] = tex3D<float>(t, p.x, p.y, p.z); }
KERNEL(fa1d, float) o[i] = tex1DLayered<float>(t, p.x, layer); }
KERNEL(fa2d, float) o[i] = tex2DLayered<float>(t, p.x, p.y, layer); }
KERNEL(fcube, float) o[i] = texCubemap<float>(t, p.x, p.y, p.z); }
KERNEL(facube, float) o[i] = texCubemapLayered<float>(t, p.x, p.y, p.z, layer); }
KERNEL(f2x2d, float2) o[i] = tex2D<float2>(t, p.x, p.y); }
KERNEL(f4x2d, float4) o[i] = tex2D<float4>(t, p.x, p.y); }
KERNEL(u4x2d, uint4) const uchar4 v = tex2D<uchar4>(t, p.x, p.y); o[i] = make_uint4(v.x, v.y, v.z, v.w); }
KERNEL(i2x2d, int2) const short2 v = tex2D<short2>(t, p.x, p.y); o[i] = make_int2(v.x, v.y); }
KERNEL(u2d, unsigned) o[i] = tex2D<unsigned>(t, p.x, p.y); }
KERNEL(i2d, int) o[i] = tex2D<int>(t, p.x, p.y); }
KERNEL(f1, float) o[i] = tex1Dfetch<float>(t, (int)floorf(p.x)); }
KERNEL(i1, int) o[i] = tex1Dfetch<int>(t, (int)floorf(p.x)); }
KERNEL(gather, float4) o[i] = tex2Dgather<float4>(t, p.x, p.y, 1); }
KERNEL(level, float2) o[i] = make_float2(tex2DLod<float>(t, p.x, p.y, 3.f),
  tex2DGrad<float>(t, p.x, p.y, make_float2(1, 2), make_float2(3, 4))); }
KERNEL(resident, float2) bool there; const float v = tex2D<float>(t, p.x, p.y, &there); o[i] = make_float2(v, there); }
KERNEL(size, uint4) unsigned w, h; asm("txq.width.b32 %0, [%1];" : "=r"(w) : "l"(t));
  asm("txq.height.b32 %0, [%1];" : "=r"(h) : "l"(t)); o[i] = make_uint4(w, h, 0, 0); }
KERNEL(some, float) if (i % 3) o[i] = tex2D<float>(t, p.x, p.y); }
struct Pair { cudaTextureObject_t first; float scale; cudaTextureObject_t second; };
extern "C" __global__ void pair(Pair two, float* o, const float4* c, int n) { LANE
  o[i] = two.scale * tex2D<float>(two.first, c[i].x, c[i].y) + tex2D<float>(two.second, c[i].x, c[i].y); }
extern "C" __global__ void many(const cudaTextureObject_t* t, float* o, const float4* c, int n) { LANE
  o[i] = tex2D<float>(t[i % 3], c[i].x, c[i].y); }
extern "C" __global__ void records(const Pair* pairs, float* o, const float4* c, int n) { LANE
  o[i] = pairs[i % 2].scale * tex2D<float>(pairs[i % 2].second, c[i].x, c[i].y); }
// Bicubic filtering by four bilinear fetches, as image code does it.
__device__ float w0(float a) { return (a * (a * (-a + 3) - 3) + 1) / 6; }
__device__ float w1(float a) { return (a * a * (3 * a - 6) + 4) / 6; }
__device__ float w2(float a) { return (a * (a * (-3 * a + 3) + 3) + 1) / 6; }
__device__ float w3(float a) { return a * a * a / 6; }
extern "C" __global__ void bicubic(cudaTextureObject_t t, float* o, const float4* c, int n) { LANE
  const float x = c[i].x - 0.5f, y = c[i].y - 0.5f, px = floorf(x), py = floorf(y), fx = x - px, fy = y - py;
  const float g0 = w0(fx) + w1(fx), g1 = w2(fx) + w3(fx), h0 = px - 0.5f + w1(fx) / g0, h1 = px + 1.5f + w3(fx) / g1;
  const float k0 = w0(fy) + w1(fy), k1 = w2(fy) + w3(fy), l0 = py - 0.5f + w1(fy) / k0, l1 = py + 1.5f + w3(fy) / k1;
  o[i] = k0 * (g0 * tex2D<float>(t, h0, l0) + g1 * tex2D<float>(t, h1, l0))
       + k1 * (g0 * tex2D<float>(t, h0, l1) + g1 * tex2D<float>(t, h1, l1)); }
// The largest value along rays through a volume, as renderers do it.
extern "C" __global__ void rays(cudaTextureObject_t volume, float* image, int width, int height, int steps) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x >= width || y >= height) return;
  float most = 0;
  for (int s = 0; s < steps; ++s)
    most = fmaxf(most, tex3D<float>(volume, (x + 0.5f) / width, (y + 0.5f) / height, (s + 0.5f) / steps));
  image[y * width + x] = most; }
"""
SEEDS = itertools.count()
N = 96


@cache
def ptx() -> str:
    return compile_ptx(Source("textures", "f1d", SOURCE), "sm_90a")


def launched(kernel: str, texture: object, out: NDArray[Any], *args: object) -> Any:
    return matmill.emulate(ptx(), kernel, 2, 64, texture, out, *args)


def places(extents: Sequence[float], seed: int, *, beyond: float = 2.3) -> NDArray[np.float32]:
    """Return coordinates in and out of range as float4, some of them on texels' borders and centres; w is a layer."""
    rng = np.random.default_rng(seed)
    result = np.zeros((N, 4), np.float32)
    for axis, extent in enumerate(extents):
        result[:, axis] = rng.uniform(-(beyond - 1) * extent, beyond * extent, N)
        result[: N // 6, axis] = rng.integers(-2, 2 * math.ceil(extent) + 2, N // 6)
        result[N // 6 : N // 3, axis] = rng.integers(0, 2 * math.ceil(extent), N // 6) + 0.5
    result[:, 3] = rng.integers(0, 4, N)
    return result


# The reference


def one(index: int, extent: int, mode: str) -> int | None:
    """Return the texel that an index outside stands for; None is the border."""
    if mode == "wrap":
        return index % extent
    if mode == "border":
        return index if 0 <= index < extent else None
    return min(max(index, 0), extent - 1)


def folded(x: float, mode: str) -> float:
    """Return a normalized coordinate as the guide replaces it."""
    if mode == "wrap":
        return x - math.floor(x)
    if mode == "mirror":
        return x - math.floor(x) if math.floor(x) % 2 == 0 else 1 - (x - math.floor(x))
    return x


def along(x: float, extent: int, mode: str, *, normalized: bool, linear: bool) -> list[tuple[int | None, float]]:
    """Return texels and their shares along one axis."""
    if normalized:
        x = folded(x, mode) * extent
    elif mode in {"wrap", "mirror"}:
        mode = "clamp"
    if not linear:
        return [(one(math.floor(x), extent, mode), 1.0)]
    first, share = divmod(round((x - 0.5) * 256), 256)  # to nearest, ties to even
    return [(one(first, extent, mode), 1 - share / 256), (one(first + 1, extent, mode), share / 256)]


def fetched(values: NDArray[Any], at: Sequence[float], texture: Texture) -> Any:
    """Return what a fetch from ``values`` (…, y, x, channels) gives, in float64."""
    modes = [texture.address] * len(at) if isinstance(texture.address, str) else list(texture.address)
    axes = [
        along(float(x), extent, mode, normalized=texture.normalized, linear=texture.filter == "linear")
        for x, extent, mode in zip(at, values.shape[-2::-1], modes, strict=True)
    ]
    total = np.zeros(values.shape[-1])
    for corner in itertools.product(*axes):
        index = [texel for texel, _ in corner]
        value = np.full(values.shape[-1], texture.border) if None in index else values[tuple(index[::-1])]
        total = total + math.prod(share for _, share in corner) * value
    return total


def as_floats(array: NDArray[Any]) -> NDArray[Any]:
    """Return the texels as a fetch with ``read="normalized"`` gives them, and floats as they are."""
    if array.dtype.kind == "f":
        return array.astype(np.float64)
    return np.maximum(array / np.float64(np.iinfo(array.dtype).max), -1).astype(np.float32).astype(np.float64)


def compare(texture: Texture, kernel: str, c: NDArray[np.float32], layers: Sequence[NDArray[Any]]) -> None:
    """Run ``kernel`` and compare each lane with a fetch from the values (…, y, x, channels) of its layer."""
    out = np.zeros((N, texture.channels), np.float32)
    launched(kernel, texture, out, c, N).raise_if()
    dimensions = len(texture.extents)
    expected = np.array([fetched(layers[int(p[3])], p[:dimensions].tolist(), texture) for p in c])
    # All shares are multiples of 2^-24: sums round once, to float32.
    np.testing.assert_allclose(out, expected, rtol=2e-7, atol=1e-9)


# Fetches of every kind


@pytest.mark.parametrize("mode", ["clamp", "border", "wrap", "mirror"])
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("filtering", ["point", "linear"])
def test_every_address_mode_and_filter(mode: str, normalized: bool, filtering: str) -> None:
    rng = np.random.default_rng(next(SEEDS))
    options: dict[str, Any] = {
        "address": mode, "normalized": normalized, "filter": filtering, "border": 0.25 if mode == "border" else 0.0,
    }  # fmt: skip
    for kernel, shape in (("f1d", (13,)), ("f2d", (5, 7)), ("f3d", (3, 5, 7)), ("fa1d", (4, 9)), ("fa2d", (4, 5, 3))):
        values = rng.random(shape, np.float32)
        texture = Texture(values, layered="fa" in kernel, **options)
        c = places([1.0] * 3 if normalized else texture.extents, next(SEEDS))
        if normalized:  # off the borders of texels in mirrored periods, where the guide's formula jumps
            c[:, :3] += np.float32(0.0003)
        layers = values if texture.layered else [values] * 4
        compare(texture, kernel, c, [layer[..., None] for layer in layers])


@pytest.mark.parametrize("dtype", ["f4", "f2", "u1", "i1", "u2", "i2"])
@pytest.mark.parametrize("channels", [1, 2, 4])
@pytest.mark.parametrize("filtering", ["point", "linear"])
def test_every_element_that_is_read_as_a_float(dtype: str, channels: int, filtering: str) -> None:
    rng = np.random.default_rng(next(SEEDS))
    kind = np.dtype(dtype)
    shape = (5, 11, channels) if channels > 1 else (5, 11)
    if kind.kind == "f":
        values = rng.normal(size=shape).astype(kind)
    else:
        limits = np.iinfo(kind)
        values = rng.integers(limits.min, limits.max + 1, shape).astype(kind)
        values.flat[:2] = limits.min, limits.max
    texture = Texture(values, channels=channels, filter=filtering, read="normalized", address=("border", "clamp"))
    kernel = {1: "f2d", 2: "f2x2d", 4: "f4x2d"}[channels]
    compare(texture, kernel, places((11, 5), next(SEEDS)), [as_floats(values).reshape(5, 11, channels)] * 4)


def test_integers_are_read_as_they_are() -> None:
    rng = np.random.default_rng(next(SEEDS))
    c = places((7, 5), next(SEEDS))
    y, x = (np.clip(np.floor(c[:, k]).astype(int), 0, extent - 1) for k, extent in ((1, 5), (0, 7)))
    for kernel, dtype, channels in (
        ("u4x2d", "u1", 4), ("i2x2d", "i2", 2), ("u2d", "u4", 1), ("i2d", "i4", 1), ("i2d", "i1", 1), ("u2d", "u2", 1),
    ):  # fmt: skip
        limits = np.iinfo(dtype)
        shape = (5, 7, channels) if channels > 1 else (5, 7)
        values = rng.integers(limits.min, limits.max + 1, shape).astype(dtype)
        out = np.zeros((N, channels) if channels > 1 else N, "i4" if kernel[0] == "i" else "u4")
        # Integers of 32 bits stay so whatever read says.
        read = "normalized" if limits.bits == 32 else "element"
        launched(kernel, Texture(values, channels=channels, read=read), out, c, N).raise_if()
        assert (out == values[y, x]).all(), (kernel, dtype)


def test_linear_memory_is_zero_outside() -> None:
    values = np.arange(1, 14, dtype=np.float32)
    c = places((13,), next(SEEDS))
    index = np.floor(c[:, 0]).astype(int)
    inside = (index >= 0) & (index < 13)
    assert 0 < inside.sum() < N
    for kernel, dtype in (("f1", np.float32), ("i1", np.int32)):
        out = np.full(N, 7, dtype)
        launched(kernel, Texture(values.astype(dtype), address="clamp"), out, c, N).raise_if()
        assert (out == np.where(inside, values[np.clip(index, 0, 12)], 0)).all()


def test_cubemaps() -> None:
    rng = np.random.default_rng(next(SEEDS))
    values = rng.random((12, 5, 5), np.float32)
    c = rng.normal(size=(N, 4)).astype(np.float32)
    c[:, 3] = rng.integers(0, 2, N)

    def on_face(p: NDArray[np.float32]) -> tuple[int, float, float]:
        x, y, z = (float(v) for v in p[:3])
        if abs(x) > abs(y) and abs(x) > abs(z):
            face, size, s, t = (0, x, -z, -y) if x >= 0 else (1, -x, z, -y)
        elif abs(y) > abs(z):
            face, size, s, t = (2, y, x, z) if y >= 0 else (3, -y, x, -z)
        else:
            face, size, s, t = (4, z, x, -y) if z >= 0 else (5, -z, -x, -y)
        return face, (s / size + 1) / 2, (t / size + 1) / 2

    for kernel, layered, filtering in itertools.product(("fcube", "facube"), (True, False), ("point", "linear")):
        if layered != (kernel == "facube"):
            continue
        held = values if layered else values[:6]
        out = np.zeros(N, np.float32)
        texture = Texture(held, cubemap=True, layered=layered, normalized=True, filter=filtering)
        launched(kernel, texture, out, c, N).raise_if()
        plane = Texture(held[0], normalized=True, filter=filtering)
        for p, got in zip(c, out, strict=True):
            face, s, t = on_face(p)
            wanted = fetched(held[face + (6 * int(p[3]) if layered else 0)][..., None], (s, t), plane)
            np.testing.assert_allclose(got, wanted[0], rtol=2e-7)


def test_a_gather_gives_the_four_texels_of_linear_filtering() -> None:
    rng = np.random.default_rng(next(SEEDS))
    values = rng.random((5, 7, 2), np.float32)
    c, out = places((7, 5), next(SEEDS)), np.zeros((N, 4), np.float32)
    c[:8, 0] = np.array([2.5, 2.4990, 2.4979, 3.4981, 3.4979, 1.5019, 1.5021, 0.49805], np.float32)
    launched("gather", Texture(values, channels=2, address="border", border=(0, 9)), out, c, N).raise_if()
    padded = np.pad(values[..., 1], 40, constant_values=9)
    x, y = ((np.rint((c[:, k].astype(float) - 0.5) * 256) // 256).astype(int) + 40 for k in (0, 1))
    wanted = [padded[y + 1, x], padded[y + 1, x + 1], padded[y, x + 1], padded[y, x]]
    assert (out == np.stack(wanted, axis=1)).all()


def test_levels_gradients_residency_and_queries() -> None:
    values = np.random.default_rng(next(SEEDS)).random((5, 7), np.float32)
    c, plain = places((7, 5), next(SEEDS)), np.zeros(N, np.float32)
    texture = Texture(values, filter="linear")
    launched("f2d", texture, plain, c, N).raise_if()
    two = np.zeros((N, 2), np.float32)
    launched("level", texture, two, c, N).raise_if()
    assert (two == plain[:, None]).all()
    launched("resident", texture, two, c, N).raise_if()
    assert (two[:, 0] == plain).all()
    assert (two[:, 1] == 1).all()
    sizes = np.zeros((N, 4), np.uint32)
    launched("size", texture, sizes, c, N).raise_if()
    assert sizes[0].tolist() == [7, 5, 0, 0]
    some = np.full(N, -1, np.float32)
    report = launched("some", texture, some, c, N).raise_if()
    assert (some == np.where(np.arange(N) % 3, plain, -1)).all()
    assert report.counters.texture_requests == N // 32
    assert sum(line.texture_requests for line in report.by_line.values()) == N // 32


def test_arrays_of_any_strides() -> None:
    values = np.random.default_rng(next(SEEDS)).random((10, 14), np.float32)
    c = places((7, 5), next(SEEDS))
    y, x = (np.clip(np.floor(c[:, k]).astype(int), 0, extent - 1) for k, extent in ((1, 5), (0, 7)))
    for view in (values[::2, ::2], values[8::-2, 13:6:-1], np.asfortranarray(values)[:5, 3:10]):
        out = np.zeros(N, np.float32)
        launched("f2d", Texture(view), out, c, N).raise_if()
        assert (out == view[y, x]).all()


# Handles


def test_handles_in_structs_arrays_and_records() -> None:
    rng = np.random.default_rng(next(SEEDS))
    arrays = [rng.random((5, 7), np.float32) for _ in range(3)]
    textures = [Texture(each) for each in arrays]
    c, out = places((7, 5), next(SEEDS)), np.zeros(N, np.float32)
    y, x = (np.clip(np.floor(c[:, k]).astype(int), 0, extent - 1) for k, extent in ((1, 5), (0, 7)))
    launched("pair", (textures[0], np.float32(2), textures[1]), out, c, N).raise_if()
    assert (out == np.float32(2) * arrays[0][y, x] + arrays[1][y, x]).all()
    launched("many", np.array(textures, object), out, c, N).raise_if()
    assert (out == np.stack(arrays)[np.arange(N) % 3, y, x]).all()
    layout = np.dtype([("first", object), ("scale", "f4"), ("second", object)], align=True)
    records = np.array([(textures[0], 2, textures[1]), (textures[1], 3, textures[2])], layout)
    launched("records", records, out, c, N).raise_if()
    which = np.arange(N) % 2
    assert (out == np.array([2, 3], "f4")[which] * np.stack(arrays[1:])[which, y, x]).all()
    launched("pair", records[0], out, c, N).raise_if()
    assert (out == np.float32(2) * arrays[0][y, x] + arrays[1][y, x]).all()


# As public code uses textures


def test_bicubic_filtering() -> None:
    values = np.random.default_rng(next(SEEDS)).random((9, 11), np.float32)
    c = places((11, 9), next(SEEDS), beyond=1)
    out = np.zeros(N, np.float32)
    launched("bicubic", Texture(values, filter="linear"), out, c, N).raise_if()
    for p, got in zip(c, out, strict=True):
        total = 0.0
        for j, i in itertools.product(range(4), range(4)):
            x, y = (math.floor(float(v) - 0.5) for v in p[:2])
            weights = [_cubic(float(v) - 0.5 - math.floor(float(v) - 0.5)) for v in p[:2]]
            texel = values[min(max(y - 1 + j, 0), 8), min(max(x - 1 + i, 0), 10)]
            total += weights[1][j] * weights[0][i] * float(texel)
        assert abs(total - got) < 0.01  # the fractions of linear filtering have 8 bits


def _cubic(a: float) -> list[float]:
    """Return the weights of a cubic B-spline."""
    return [(1 - a) ** 3 / 6, (3 * a**3 - 6 * a**2 + 4) / 6, (-3 * a**3 + 3 * a**2 + 3 * a + 1) / 6, a**3 / 6]


def test_rays_through_a_volume() -> None:
    volume = np.random.default_rng(next(SEEDS)).integers(0, 256, (9, 10, 12)).astype(np.uint8)
    image = np.zeros((10, 12), np.float32)
    texture = Texture(volume, filter="linear", normalized=True, read="normalized", address="border")
    matmill.emulate(ptx(), "rays", (2, 2), (8, 8), texture, image, 12, 10, 9).raise_if()
    # The rays go through the middles of texels.
    np.testing.assert_allclose(image, volume.max(axis=0) / 255, rtol=1e-6)
