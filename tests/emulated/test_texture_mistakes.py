"""Textures used wrongly: what the emulator reports, and what it refuses before anything runs."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import matmill
from matmill import Texture
from matmill.errors import ArgumentError, CompileError, EmulationError, MatmillError

#: Kernels as users have them, whose parameters have names.
NAMED = r"""
__global__ void plane(cudaTextureObject_t t, float* o, const float4* c, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) o[i] = tex2D<float>(t, c[i].x, c[i].y);
}
__global__ void many(const cudaTextureObject_t* t, float* o) {
  *o = tex2D<float>(t[0], 0, 0) + tex3D<float>(t[1], 0, 0, 0);
}
__global__ void stored(cudaTextureObject_t t, float* x, float* o) {
  const int i = threadIdx.x;
  x[i] = 2 * x[i];
  __syncthreads();
  o[i] = tex1Dfetch<float>(t, blockDim.x - 1 - i);
}
__global__ void racing(cudaTextureObject_t t, float* x, float* o) {
  const int i = threadIdx.x;
  o[i] = tex1Dfetch<float>(t, blockDim.x - 1 - i);
  x[i] = 3;
}
"""
N = 96


def test_what_a_launch_stores_is_seen_and_reported() -> None:
    x, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    report = matmill.emulate(NAMED, "stored", 1, 64, Texture(x), x, out)
    assert (out == 2 * np.arange(64)[::-1]).all()
    (hazard,) = report.hazards
    assert hazard.kind == "texture-written"
    assert "reads 4 bytes at t[63], which this launch has stored to, through the texture t" in hazard.message
    racing = matmill.emulate(NAMED, "racing", 1, 64, Texture(x), x, out)
    assert "race" in {each.kind for each in racing.hazards}
    assert matmill.emulate(NAMED, "racing", 1, 64, Texture(x.copy()), x, out).ok
    # A view is another buffer: its values are seen, and nothing is reported.
    x[:] = np.arange(64)
    assert matmill.emulate(NAMED, "stored", 1, 64, Texture(x[::-1]), x, out).ok
    assert (out == 2 * np.arange(64)).all()


def test_references_are_said_to_be_removed() -> None:
    source = "texture<float, 2> t; __global__ void k(float* o) { *o = tex2D(t, 1.0f, 2.0f); }"
    with pytest.raises(CompileError, match="CUDA 12 has removed texture references"):
        matmill.emulate(source, "k", 1, 1, None)


def told_of(texture: object, c: NDArray[np.float32] | None = None) -> str:
    """Return the one hazard of fetches from a plane."""
    at = np.zeros((N, 4), np.float32) if c is None else c
    (result,) = matmill.emulate(NAMED, "plane", 2, 64, texture, np.zeros(N, np.float32), at, N).hazards
    return str(result)


def told_of_many(handles: NDArray[Any]) -> str:
    (result,) = matmill.emulate(NAMED, "many", 1, 1, handles, np.zeros(1, np.float32)).hazards
    return str(result)


def test_a_coordinate_that_names_no_place_is_reported() -> None:
    c = np.zeros((N, 4), np.float32)
    c[5, 1] = np.nan
    told = told_of(Texture(np.ones((5, 7), np.float32)), c)
    assert told.startswith("warning: texture-coordinate at kernel.cu:4: plane: thread (5, 0, 0) of block (0, 0, 0)")
    assert "fetches from the texture t at (0, nan), in 'tex.2d" in told
    c[5, 1] = np.inf
    assert "at (0, inf)" in told_of(Texture(np.ones((5, 7), np.float32), normalized=True, address="wrap"), c)
    out = np.zeros(N, np.float32)
    assert matmill.emulate(NAMED, "plane", 2, 64, Texture(np.ones((5, 7), np.float32), filter="linear"), out, c, N).ok
    assert (out == 1).all()


def test_another_type_is_reported() -> None:
    told = told_of(Texture(np.zeros((5, 7), np.uint8)))
    assert told.startswith("error: texture-type at kernel.cu:4: plane: thread (0, 0, 0) of block (0, 0, 0)")
    assert "reads floats from the texture t, which gives uint8 as they are" in told


def test_a_handle_of_something_else_ends_the_run() -> None:
    plane = Texture(np.zeros((5, 7), np.float32))
    assert "error: texture at kernel.cu:4" in told_of(Texture(np.zeros((5, 7, 3), np.float32)))
    assert "uses the texture t, which is 3-D, as a 2-D texture" in told_of(Texture(np.zeros((5, 7, 3), np.float32)))
    planes = np.array([plane, Texture(plane.array)], object)
    assert "uses the texture t[1], which is 2-D, as a 3-D texture" in told_of_many(planes)
    assert "uses 0x1, the null pointer, as a 2-D texture" in told_of_many(np.ones(2, np.uint64))
    assert "uses 0x200000000, no handle of this launch" in told_of_many(np.ones(2, np.uint64) << 33)
    surface = matmill.Surface(np.zeros((4, 4), np.float32))
    assert "uses the surface t[0] as a 2-D texture" in told_of_many(np.array([surface, plane], object))


def test_a_parameter_takes_what_its_type_says() -> None:
    out = np.zeros(N, np.float32)
    with pytest.raises(ArgumentError, match=r"cudaTextureObject_t t.*Pass matmill\.Texture\(t\)"):
        told_of(out)
    with pytest.raises(ArgumentError, match="Pass a Texture"):
        told_of(matmill.Surface(out))
    with pytest.raises(ArgumentError, match="Check the order of the arguments"):
        matmill.emulate(NAMED, "plane", 1, 32, Texture(out), out, out, Texture(out))
    with pytest.raises(ArgumentError, match=r"t\[0\]: got a str"):
        told_of_many(np.array(["a", "b"], object))


@pytest.mark.parametrize(
    ("shape", "dtype", "options", "told"),
    [
        ((4, 4), "f8", {}, "float64 is int32 with channels=2"),
        ((4, 3), "f4", {"channels": 3}, "Pad three channels to four"),
        ((4, 3), "f4", {"channels": 2}, "2 contiguous elements in the last axis"),
        ((4, 4, 4, 4), "f4", {}, "1 to 3 axes"),
        ((4,), "f4", {"layered": True}, "2 or 3 axes, the first of them the layers"),
        ((4, 0), "f4", {}, "at least one texel"),
        ((4, 4), "f4", {"address": "repeat"}, "Texture.address"),
        ((4, 4), "f4", {"address": ("clamp",)}, "one mode, or 2"),
        ((4, 4), "f4", {"filter": "cubic"}, "Texture.filter"),
        ((4, 4), "f4", {"read": "float"}, "Texture.read"),
        ((4, 4), "u1", {"filter": "linear"}, 'read="normalized"'),
        ((4, 4), "i4", {"filter": "linear", "read": "normalized"}, "Texture.filter"),
        ((4, 4), "u1", {"address": "border", "border": 1.0}, "0 for a texture of integers"),
        ((4, 4), "f4", {"border": (1.0, 2.0)}, "a number, or 1"),
        ((5, 4, 4), "f4", {"cubemap": True, "normalized": True}, "6 square faces"),
        ((6, 4, 4), "f4", {"cubemap": True}, "directions are normalized"),
    ],
)
def test_what_no_texture_is(shape: tuple[int, ...], dtype: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises(MatmillError, match=re.escape(told)):
        Texture(np.zeros(shape, dtype), **options)


def test_mipmaps_are_refused() -> None:
    with pytest.raises(ArgumentError, match="Several levels of a mipmap are not emulated"):
        Texture([np.zeros((4, 4), np.float32), np.zeros((2, 2), np.float32)])


@pytest.mark.parametrize(
    ("instruction", "why"),
    [
        ("tex.2d.v4.f32.f32 {a, b, c, d}, [h, {x, x}], {y, y};", "an offset"),
        ("tex.2d.v4.f32.s32 {a, b, c, d}, [h, {y, y}];", "integer coordinates"),
        ("tex.2d.v4.f32.f32 {a, b, c, d}, [h, s, {x, x}];", "a sampler of its own"),
        ("tex.2dms.v4.f32.s32 {a, b, c, d}, [h, {y, y, y, y}];", "none of"),
        ("tex.3d.v4.f32.f32 {a, b, c, d}, [h, {x, x}];", "the number of its coordinates"),
        ("txq.channel_order.b32 y, [h];", "none of"),
    ],
)
def test_what_is_not_emulated_is_refused(instruction: str, why: str) -> None:
    text = f""".version 8.0 .target sm_90 .address_size 64
.entry k(.param .u64 p) {{ .reg .f32 a, b, c, d, x; .reg .b32 y; .reg .b64 h, s; ld.param.u64 h, [p]; mov.b32 y, 0;
mov.b64 s, 0; mov.f32 x, 0f00000000; {instruction} ret; }}"""
    with pytest.raises(EmulationError, match=why):
        matmill.emulate(text, "k", 1, 1, Texture(np.zeros((2, 2), np.float32)))
