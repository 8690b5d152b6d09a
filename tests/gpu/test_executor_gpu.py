"""The CUDA executor: memory, launches of any kernel, streams, and errors that name kernel and launch."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from matmill import arch
from matmill.errors import DeviceError, LaunchError
from matmill.jit.compile import Binary, compile_source
from matmill.jit.source import Source
from matmill.launch import Launch
from matmill.runtime.gpu import GPU

_TEXT = """
extern "C" __global__ void scale(float* x, int n, float factor, double offset, long long stride) {
  extern __shared__ float tile[];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  tile[threadIdx.x] = i < n ? x[i * stride] : 0.0f;
  __syncthreads();
  if (i < n) x[i * stride] = tile[threadIdx.x] * factor + float(offset);
}
"""


def _binary(device: GPU, entry: str) -> Binary:
    return compile_source(Source("tests.scale", entry, _TEXT), device.arch.target)


def test_the_arch_is_known_or_computed(device: GPU) -> None:
    assert device.arch.sms > 0
    assert device.arch.fp32_flops > 1e11
    assert device.arch.dram_bytes_per_s > 1e10
    if "H200" in device.arch.title:
        assert device.arch.name == "h200"
        assert device.arch == arch.get("h200")


def test_upload_and_download(device: GPU) -> None:
    x = np.arange(1000, dtype=np.float64).reshape(20, 50)[::2, ::-3]
    with device.upload(x, "x") as memory:
        np.testing.assert_array_equal(memory.download(x.shape, x.dtype), x)
        memory.fill_bytes(0xFF)
        assert np.isnan(memory.download((3,), x.dtype)).all()
        with pytest.raises(LaunchError, match="to download"):
            memory.download((10_000,), x.dtype)


def test_launch_passes_every_kind_of_argument(device: GPU) -> None:
    x = np.arange(300, dtype=np.float32)
    with device.upload(x, "x") as memory:
        launch = Launch(
            "tests.scale",
            "scale",
            grid=(1, 1, 1),
            block=(128, 1, 1),
            args=(memory.pointer("x"), np.int32(100), np.float32(2), np.float64(0.5), np.int64(3)),
            dynamic_shared=512,
        )
        device.launch(_binary(device, "scale"), launch)
        device.synchronize()
        x[::3] = 2 * x[::3] + 0.5
        np.testing.assert_array_equal(memory.download(x.shape, x.dtype), x)


@pytest.mark.parametrize("other", [False, True], ids=["no context", "another context"])
def test_a_launch_needs_no_context_of_the_thread(device: GPU, other: bool) -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    x = np.arange(100, dtype=np.float32)
    result: list[object] = []

    def run() -> None:
        if other:
            status, mine = driver.cuCtxCreate(None, 0, driver.CUdevice(device.index))
            assert not status.value
        args = (memory.pointer("x"), np.int32(100), np.float32(2), np.float64(0), np.int64(1))
        launch = Launch("tests.scale", "scale", (1, 1, 1), (128, 1, 1), args, dynamic_shared=512)
        device.launch(_binary(device, "scale"), launch)
        result.append(int(driver.cuCtxGetCurrent()[1]))  # as it was before
        if other:
            assert result == [int(mine)]
            driver.cuCtxDestroy(mine)

    with device.upload(x, "x") as memory:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert result
        assert other or result == [0]
        np.testing.assert_array_equal(memory.download(x.shape, x.dtype), 2 * x)


def test_much_shared_memory_is_asked_for(device: GPU) -> None:
    with device.upload(np.ones(64, np.float32), "x") as memory:
        args = (memory.pointer("x"), np.int32(64), np.float32(3), np.float64(0), np.int64(1))
        launch = Launch("tests.scale", "scale", (1, 1, 1), (64, 1, 1), args, dynamic_shared=60 * 1024)
        device.launch(_binary(device, "scale"), launch)
        device.synchronize()
        np.testing.assert_array_equal(memory.download((64,), np.dtype(np.float32)), 3)


def test_an_impossible_launch_names_itself(device: GPU) -> None:
    with device.empty(4) as memory:
        args = (memory.pointer("x"), np.int32(1), np.float32(1), np.float64(0), np.int64(1))
        launch = Launch("tests.scale", "scale", (1, 1, 1), (2048, 1, 1), args)
        with pytest.raises(LaunchError, match=r"tests\.scale<<<grid \(1, 1, 1\), block \(2048, 1, 1\)"):
            device.launch(_binary(device, "scale"), launch)


def test_a_cubin_of_another_gpu_is_refused(device: GPU) -> None:
    target = "sm_75" if device.arch.capability != (7, 5) else "sm_80"
    binary = compile_source(Source("tests.scale", "scale", _TEXT), target)
    with pytest.raises(LaunchError, match=rf"tests\.scale.*{target}"):
        device.launch(binary, Launch("tests.scale", "scale", (1, 1, 1), (32, 1, 1), ()))


def test_too_much_memory_and_too_high_a_number(device: GPU) -> None:
    with pytest.raises(LaunchError, match="OUT_OF_MEMORY"):
        device.empty(1 << 50)
    with pytest.raises(DeviceError, match="GPU 99"):
        GPU.get(99)
