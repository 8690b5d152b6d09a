"""Frames: what the driver reads at their addresses is the launch, and only what is aimed changes."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
import pytest

from matmill.arch import get
from matmill.execute import Launch, Pointer
from matmill.frame import Frame
from support.launch_frames import read_attributes, read_launch

FIRST = Launch(
    "toy",
    "sum",
    (7, 5, 3),
    (256, 1, 2),
    (Pointer("B", 1), np.int64(-3), Pointer("A", 2), np.float32(0.1), np.int32(-7), Pointer("workspace", 3)),
    dynamic_shared=70_000,
)
SECOND = Launch("toy", "finish", (1, 1, 1), (32, 1, 1), (Pointer("A", 0), np.float64(1 / 3), np.uint32(2**32 - 1)))
NAMES = ("A", "B", "workspace")


def test_values_are_written_once_and_addresses_by_name() -> None:
    frame = Frame((FIRST, SECOND), NAMES)
    for base, stream in ((2**40, 0), (2**63, 77)):
        frame.aim((base, base + 8, base + 16), stream)
        (first, on_first), (second, on_second) = (
            read_launch(*call, like) for call, like in zip(frame.calls, (FIRST, SECOND), strict=True)
        )
        assert (on_first, on_second) == (stream, stream)
        assert (first.grid, first.block, first.dynamic_shared) == (FIRST.grid, FIRST.block, 70_000)
        assert first.args[1:2] + first.args[3:5] == FIRST.args[1:2] + FIRST.args[3:5]
        found = {arg.name: arg.address for arg in first.args if isinstance(arg, Pointer)}
        assert found == {"A": base, "B": base + 8, "workspace": base + 16}
        assert second.args == (Pointer("A", base), *SECOND.args[1:])


def test_pointers_without_a_name_keep_their_address() -> None:
    frame = Frame((FIRST,))
    frame.aim((), 5)
    assert read_launch(*frame.calls[0], FIRST) == (FIRST, 5)


def test_kernels_without_parameters() -> None:
    launch = Launch("toy", "nothing", (1, 1, 1), (1, 1, 1), ())
    frame = Frame((launch,), NAMES)
    frame.aim((1, 2, 3), 0)
    assert read_launch(*frame.calls[0], launch) == (launch, 0)


@pytest.mark.parametrize(("gpu", "able"), [("h200", True), ("a100", False)])
def test_launches_start_early_where_they_may_and_the_gpu_can(gpu: str, able: bool) -> None:
    launches = (FIRST, replace(SECOND, early=True))
    frame = Frame(launches, NAMES, get(gpu))
    frame.aim((1, 2, 3), 4)
    found = [read_launch(*call, like)[0].early for call, like in zip(frame.calls, launches, strict=True)]
    assert found == [False, able]


@pytest.mark.parametrize(
    ("blocks", "resident", "shared", "percent"),
    [
        (132, 1, 101_376, 43),  # 100 of 228 KB, all but
        (132, 1, 101_392, 57),  # 132
        (133, 1, 101_376, None),  # more than the kernel is made for: some multiprocessors take turns
        (133, 2, 101_376, 100),
        (20, 2, 101_376, 43),
        (264, 2, 116_000, None),  # more than there is
        (132, 0, 101_376, None),
        (132, 3, 0, 3),
    ],
)
def test_shared_memory_is_kept_for_the_blocks_that_a_multiprocessor_gets(
    blocks: int, resident: int, shared: int, percent: int | None
) -> None:
    launch = replace(FIRST, grid=(blocks // 2, 2, 1) if blocks % 2 == 0 else (blocks, 1, 1), resident=resident)
    launch = replace(launch, dynamic_shared=shared, early=True)
    frame = Frame((launch, SECOND), NAMES, get("h200"))
    assert read_attributes(frame.calls[0][0]) == {6: 1} | ({} if percent is None else {14: percent})
    assert read_attributes(frame.calls[1][0]) == {}
    assert read_attributes(Frame((launch,), NAMES).calls[0][0]) == {}


@pytest.mark.parametrize("addresses", [(1, 2), (1, 2, 3, 4)])
def test_every_name_needs_an_address(addresses: tuple[int, ...]) -> None:
    with pytest.raises(struct.error, match="3 items"):
        Frame((FIRST,), NAMES).aim(addresses, 0)
