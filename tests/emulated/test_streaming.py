"""Streaming through the inner kernel's own PTX, in the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from matmill.dtypes import ALL, BF16, F32, DType
from matmill.emulator import Memory, run
from matmill.jit.compile import Binary
from matmill.launch import Launch
from matmill.streaming import inner_steps, stream_inner
from support.lazy_device import LazyDevice
from support.streaming_trial import exact, numbers, plan_for, stored
from support.strided import H200

Array = NDArray[Any]


class Emulated(LazyDevice):
    """The device whose kernels are run by the emulator, in its address space."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.entries: list[str] = []
        self._space = Memory()

    def allocate(self, nbytes: int) -> int:
        """Return memory of the emulator."""
        memory = np.full(nbytes, 0xFF, np.uint8)
        self.calls.append("allocate")
        return self._hold(memory, self._space.bind("memory", memory, access="rw").address)

    def run(self, binary: Binary, launch: Launch) -> None:
        """Run the kernel's instructions, which may not race."""
        self.entries.append(launch.entry)
        assert not run(binary.ptx, launch, self._space, races=True).hazards


def _streamed(e: Array, f: Array, device: Emulated, budget: int, **options: Any) -> Array:
    result = stream_inner(device, plan_for(e, f, budget), inner_steps(H200), e, f, **options)
    assert device.rests()
    return result


@pytest.mark.parametrize("dtype", ALL.values(), ids=ALL)
@pytest.mark.parametrize(("m", "n"), [(1, 5), (17, 2)])
@pytest.mark.parametrize("ways", [("rows", "rows"), ("columns", "columns"), ("backwards", "sparse")])
def test_chunks_add_up_to_the_product(ways: tuple[str, str], m: int, n: int, dtype: DType) -> None:
    e, f, c = (
        stored(numbers(shape, dtype, seed), way)
        for seed, (shape, way) in enumerate(zip(((m, 900), (900, n), (m, n)), (*ways, "columns"), strict=True))
    )
    budget = 3 * (m + n) * 256 * dtype.itemsize
    device = Emulated()
    result = _streamed(e, f, device, budget, c=c, alpha=2, beta=-1)
    count = plan_for(e, f, budget).count
    assert count >= 4
    assert (device.entries.count("inner"), device.entries.count("accumulate_partial")) == (count, count)
    assert np.array_equal(result, (2 * exact(e, f) - c.astype(np.float64)).astype(dtype.numpy))


@pytest.mark.parametrize("dtype", [F32, BF16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("how", ["rows", "columns"])
@pytest.mark.parametrize("m", [4, 20])
def test_gram_matrices(m: int, how: str, dtype: DType) -> None:
    e = stored(numbers((m, 900), dtype), how)
    result = _streamed(e, e.T, Emulated(), 3 * m * 256 * dtype.itemsize)
    assert np.array_equal(result, exact(e, e.T).astype(dtype.numpy))


@pytest.mark.parametrize(("k", "alpha"), [(0, 1.0), (500, 0.0)])
def test_nothing_to_sum_is_c_alone(k: int, alpha: float) -> None:
    e, f, c = np.full((3, k), np.nan, np.float32), np.ones((k, 2), np.float32), numbers((3, 2), F32)
    device = Emulated()
    assert np.array_equal(_streamed(e, f, device, 20_000, c=c, alpha=alpha, beta=2), 2 * c)
    assert device.entries == ["splitk_reduce"]


def test_the_order_of_sums_follows_from_the_plan_alone() -> None:
    rng = np.random.default_rng(5)
    e, f = rng.standard_normal((3, 3000), np.float32), rng.standard_normal((3000, 3), np.float32)
    first, second = (_streamed(e, f, Emulated(seed), 20_000) for seed in (1, 2))
    assert first.tobytes() == second.tobytes()
