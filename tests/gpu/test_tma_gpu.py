"""What TMA does on a GPU where no document says it, as the emulator has it (docs/emulator-hopper.md)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from matmill.emulator.memory.boxes import Boxes, read_global, read_shared, reduce_global, write_global, write_shared
from matmill.jit.compile import compile_source
from matmill.jit.source import Source
from matmill.launch import HOPPER, Launch, Pointer, TensorMap
from matmill.runtime.gpu import GPU
from matmill.tensor_map import ELEMENTS

TILE = 4096  # bytes of shared memory, which begin at a multiple of 1024
TEXT = r"""
struct alignas(64) Map { unsigned char bytes[128]; };
constexpr int WORDS = 1024;

__device__ unsigned address_of(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// One box to shared memory, and all of it to out; out[WORDS] says whether the barrier's phase completed in time.
extern "C" __global__ void load(const __grid_constant__ Map map, int x, int y, unsigned expected, unsigned* out) {
  __shared__ alignas(1024) unsigned tile[WORDS];
  __shared__ unsigned long long full;
  const unsigned bar = address_of(&full);
  for (int i = threadIdx.x; i < WORDS; i += 32) tile[i] = 0xFFFFFFFFu;
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  unsigned done = 0;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(expected) : "memory");
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3}], [%4];" ::
            "r"(address_of(tile)), "l"(&map), "r"(x), "r"(y), "r"(bar) : "memory");
    for (int tries = 0; tries < 100000 && !done; ++tries) {
      asm volatile(
          "{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
          : "=r"(done) : "r"(bar) : "memory");
    }
    out[WORDS] = done;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < WORDS; i += 32) out[i] = tile[i];
}

// The words of "in" to shared memory, and a box of them to the tensor: a store, or a sum.
extern "C" __global__ void store(const __grid_constant__ Map map, int x, int y, int sum, const unsigned* in) {
  __shared__ alignas(1024) unsigned tile[WORDS];
  for (int i = threadIdx.x; i < WORDS; i += 32) tile[i] = in[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    if (sum) {
      asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
                       &map), "r"(x), "r"(y), "r"(address_of(tile)) : "memory");
    } else {
      asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map),
                   "r"(x), "r"(y), "r"(address_of(tile)) : "memory");
    }
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}
"""
ROWS, ROW_BYTES = 12, 512
MATRIX = TensorMap(Pointer("A", 0), "float32", (100, ROWS), (ROW_BYTES,), (16, 8))
#: As float32 bits: ties and near ties of tf32, subnormals, infinities, NaN of three kinds, and zeros.
SPECIAL = np.array(
    [
        *(0x3F801000, 0x3F803000, 0x3F800FFF, 0x3F801001, 0xBF801000, 0xBF803000, 0x00000001, 0x80001001),
        *(0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001, 0x7FC00000, 0xFFFFFFFF, 0x00000000, 0x80000000),
    ],
    np.uint32,
)


#: Where stores begin: at the end of the first dimension, so that some rows are outside.
AT = (84, 6)


@pytest.fixture(autouse=True)
def hopper(device: GPU) -> None:
    if device.arch.capability < HOPPER:
        pytest.skip("TMA needs compute capability 9.0")


def noise(seed: int, size: int) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def special_rows() -> NDArray[np.uint8]:
    """Return a tensor of special values."""
    return np.tile(SPECIAL, ROWS * ROW_BYTES // SPECIAL.nbytes).view(np.uint8)


def loaded(
    device: GPU, tensor: TensorMap, memory: NDArray[np.uint8], at: tuple[int, int], expected: int
) -> tuple[NDArray[np.uint8], bool]:
    """Return shared memory after a load, and whether ``expected`` bytes completed the phase."""
    binary = compile_source(Source("tests.tma", "load", TEXT), device.arch.target)
    with device.upload(memory, "A") as source, device.upload(np.zeros(TILE // 4 + 1, np.uint32), "out") as out:
        args = (
            *(replace(tensor, pointer=source.pointer("A")), np.int32(at[0]), np.int32(at[1])),
            *(np.uint32(expected), out.pointer("out")),
        )
        device.launch(binary, Launch("tests.tma", "load", (1, 1, 1), (32, 1, 1), args))
        device.synchronize()
        words = out.download((TILE // 4 + 1,), np.dtype(np.uint32))
    return words[:-1].view(np.uint8), bool(words[-1])


def emulated(tensor: TensorMap, memory: NDArray[np.uint8], at: tuple[int, int]) -> tuple[NDArray[np.uint8], int]:
    """Return shared memory after a load, and the bytes that it counts."""
    boxes, zero = Boxes.of(tensor, np.array([at])), np.zeros(1, np.int64)
    tile = np.full(TILE, 0xFF, np.uint8)
    write_shared(tile, zero, boxes, zero, read_global(memory, 0, boxes))
    return tile, boxes.nbytes


LOADS = {
    "negative coordinates": (MATRIX, (-4, -3)),
    "beyond the end": (MATRIX, (92, 7)),
    "a swizzle of 128 at the corner": (replace(MATRIX, box=(32, 8), swizzle=128), (-8, 6)),
    "a swizzle of 64": (replace(MATRIX, swizzle=64), (4, 1)),
    "a swizzle of 32": (replace(MATRIX, box=(8, 8), swizzle=32), (4, 1)),
    "every second row": (replace(MATRIX, element_strides=(1, 2)), (0, 1)),
    "every third row, past the end": (replace(MATRIX, element_strides=(1, 3)), (0, 6)),
    "an element stride of the first dimension": (replace(MATRIX, element_strides=(2, 1)), (0, 0)),
    **{
        f"rows narrower than a swizzle of {swizzle}": (replace(MATRIX, box=(4, 8), swizzle=swizzle), (4, 1))
        for swizzle in (32, 64, 128)
    },
    **{
        f"NaN outside of {element}": (
            replace(MATRIX, element=element, box=(64 // ELEMENTS[element].itemsize, 8), nan_fill=True),
            (-16 // ELEMENTS[element].itemsize, -1),
        )
        for element in ("float16", "bfloat16", "float32", "float64", "tfloat32")
    },
    **{
        f"special values of {e}": (replace(MATRIX, element=e), (0, 0))
        for e in ("float32_ftz", "tfloat32", "tfloat32_ftz")
    },
}


@pytest.mark.parametrize("name", LOADS)
def test_loads_are_those_of_the_emulator(device: GPU, name: str) -> None:
    tensor, at = LOADS[name]
    memory = special_rows() if "special" in name else noise(1, ROWS * ROW_BYTES)
    expected, nbytes = emulated(tensor, memory, at)
    result, done = loaded(device, tensor, memory, at, nbytes)
    np.testing.assert_array_equal(result.view(np.uint32), expected.view(np.uint32))
    assert done


@pytest.mark.parametrize("element", ["float32", "float32_ftz"])
@pytest.mark.parametrize("add", [False, True], ids=["store", "add"])
def test_stores_and_sums_are_those_of_the_emulator(device: GPU, element: str, *, add: bool) -> None:
    tensor = replace(MATRIX, element=element)
    memory = special_rows()
    # Each value is added to the one before it: two subnormals, two infinities, numbers and NaN.
    tile = np.tile(np.roll(SPECIAL, -1 - AT[0] % len(SPECIAL)), TILE // SPECIAL.nbytes)
    expected, zero = memory.copy(), np.zeros(1, np.int64)
    boxes = Boxes.of(tensor, np.array([AT]))
    contents = read_shared(tile.view(np.uint8), zero, boxes, zero)
    if add:
        with np.errstate(invalid="ignore"):
            reduce_global(expected, 0, boxes, contents, "add")
    else:
        write_global(expected, 0, boxes, contents)
    binary = compile_source(Source("tests.tma", "store", TEXT), device.arch.target)
    with device.upload(memory, "A") as target, device.upload(tile, "in") as source:
        here = replace(tensor, pointer=target.pointer("A"))
        args = (here, np.int32(AT[0]), np.int32(AT[1]), np.int32(add), source.pointer("in"))
        device.launch(binary, Launch("tests.tma", "store", (1, 1, 1), (32, 1, 1), args))
        device.synchronize()
        result = target.download(memory.shape, memory.dtype).view(np.float32)
    np.testing.assert_array_equal(result, expected.view(np.float32))
    assert (np.signbit(result) == np.signbit(expected.view(np.float32)))[~np.isnan(result)].all()
