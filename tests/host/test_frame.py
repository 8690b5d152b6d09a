"""Frames: what the driver reads at their addresses is the launch, and only what is bound changes."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import replace

import numpy as np
import pytest

from matmill import tensor_map
from matmill.arch import get
from matmill.errors import LaunchError
from matmill.launch import Launch, Pointer, Struct, TensorMap
from matmill.runtime.launch_frame import Frame
from support.launch_frames import read_attributes, read_launch

FIRST = Launch(
    "toy",
    "sum",
    (7, 5, 3),
    (256, 1, 2),
    (Pointer("B", 1), np.int64(-3), Pointer("A", 2), np.float32(0.1), np.int32(-7), Pointer("workspace", 3)),
    dynamic_shared=70_000,
)
SECOND = Launch("toy", "reduce", (1, 1, 1), (32, 1, 1), (Pointer("A", 0), np.float64(1 / 3), np.uint32(2**32 - 1)))
NAMES = ("A", "B", "workspace")


def test_values_are_written_once_and_addresses_by_name() -> None:
    frame = Frame((FIRST, SECOND), NAMES)
    for base, stream in ((2**40, 0), (2**63, 77)):
        frame.bind((base, base + 8, base + 16), stream)
        (first, on_first), (second, on_second) = (
            read_launch(*call, like) for call, like in zip(frame.calls, (FIRST, SECOND), strict=True)
        )
        assert (on_first, on_second) == (stream, stream)
        assert (first.grid, first.block, first.dynamic_shared) == (FIRST.grid, FIRST.block, 70_000)
        assert first.args[1:2] + first.args[3:5] == FIRST.args[1:2] + FIRST.args[3:5]
        result = {arg.name: arg.address for arg in first.args if isinstance(arg, Pointer)}
        assert result == {"A": base, "B": base + 8, "workspace": base + 16}
        assert second.args == (Pointer("A", base), *SECOND.args[1:])


def test_pointers_without_a_name_keep_their_address() -> None:
    frame = Frame((FIRST,))
    frame.bind((), 5)
    assert read_launch(*frame.calls[0], FIRST) == (FIRST, 5)


def test_kernels_without_parameters() -> None:
    launch = Launch("toy", "nothing", (1, 1, 1), (1, 1, 1), ())
    frame = Frame((launch,), NAMES)
    frame.bind((1, 2, 3), 0)
    assert read_launch(*frame.calls[0], launch) == (launch, 0)


@pytest.mark.parametrize(("gpu", "able"), [("h200", True), ("a100", False)])
def test_launches_start_early_where_they_may_and_the_gpu_can(gpu: str, able: bool) -> None:
    launches = (FIRST, replace(SECOND, pdl=True))
    frame = Frame(launches, NAMES, get(gpu))
    frame.bind((1, 2, 3), 4)
    result = [read_launch(*call, like)[0].pdl for call, like in zip(frame.calls, launches, strict=True)]
    assert result == [False, able]


@pytest.mark.parametrize(
    ("blocks", "resident", "shared", "percent"),
    [
        (132, 1, 101_376, 43),  # 100 of 228 KB, all but
        (132, 1, 101_392, 57),  # 132
        (133, 1, 101_376, None),  # more than the kernel is made for: some SMs run blocks one after another
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
    launch = replace(launch, dynamic_shared=shared, pdl=True)
    frame = Frame((launch, SECOND), NAMES, get("h200"))
    assert read_attributes(frame.calls[0][0]) == {6: 1} | ({} if percent is None else {14: percent})
    assert read_attributes(frame.calls[1][0]) == {}
    assert read_attributes(Frame((launch,), NAMES).calls[0][0]) == {}


@pytest.mark.parametrize(
    ("blocks", "pdl", "even", "gpu", "least"),
    [
        (256, True, True, "h200", 2),  # two blocks for some SMs, and no SM has room for three
        (100, True, True, "h200", 1),
        (256, False, True, "h200", None),  # starts on an empty GPU
        (256, True, False, "h200", None),
        (256, True, True, "a100", None),  # kernels never overlap there
        (1000, True, True, "h200", None),  # one more makes little difference
    ],
)
def test_no_multiprocessor_gets_more_than_its_share_of_blocks(
    blocks: int, pdl: bool, even: bool, gpu: str, least: int | None
) -> None:
    arch = get(gpu)
    launch = replace(FIRST, grid=(blocks, 1, 1), dynamic_shared=19_200, pdl=pdl, even=even)
    frame = Frame((launch,), NAMES, arch)
    shared = read_launch(*frame.calls[0], launch)[0].dynamic_shared
    if least is None:
        assert shared == 19_200
    else:
        assert arch.shared_per_sm // (shared + arch.shared_reserved) == least
        assert shared <= arch.shared_per_block


@pytest.mark.parametrize("addresses", [(1, 2), (1, 2, 3, 4)])
def test_every_name_needs_an_address(addresses: tuple[int, ...]) -> None:
    with pytest.raises(struct.error, match="3 items"):
        Frame((FIRST,), NAMES).bind(addresses, 0)


def test_a_struct_is_copied_to_a_slot_of_its_alignment() -> None:
    args = Struct.of(np.int32(5), Pointer("x", 2**40), np.float32(0.5))
    assert (args.data, args.align) == (struct.pack("<iiQfi", 5, 0, 2**40, 0.5, 0), 8)
    launch = replace(SECOND, args=(np.int8(7), Pointer("A", 0), args, np.int8(9)))
    frame = Frame((FIRST, launch), NAMES)
    frame.bind((2**41, 2, 3), 3)
    assert read_launch(*frame.calls[1], launch)[0].args == (np.int8(7), Pointer("A", 2**41), args, np.int8(9))
    assert ctypes.c_uint64.from_address(frame.calls[1][1] + 16).value % 8 == 0


MAP = TensorMap(Pointer("A", 7), "float16", (64, 8), (128,), (64, 8), swizzle=128)


@pytest.mark.parametrize("first", [0, 256])
def test_tensor_maps_have_every_new_address(first: int) -> None:
    encoded: list[int] = []
    tensor = replace(MAP, first=first)

    def encode(tensor: TensorMap, address: int) -> bytes:
        encoded.append(address)
        return tensor_map.encode(tensor, address)

    frame = Frame((replace(FIRST, args=(np.int32(1), tensor, np.int32(2))),), NAMES, encode=encode)
    before, at, behind = (ctypes.c_uint64 * 3).from_address(frame.calls[0][1])
    assert at % 64 == 0
    for base in (2**40, 2**40, 2**41, 2**40 + 16, 2**40):
        frame.bind((base, 2, 3), 0)
        assert ctypes.string_at(at, 128) == tensor_map.encode(tensor, base)
        assert ctypes.string_at(before, 4) + ctypes.string_at(behind, 4) == struct.pack("<ii", 1, 2)
    assert encoded == [2**40, 2**40 + 16]  # where 64 bytes divide the address, it is written by itself


def test_what_does_not_fit_its_slot_is_refused() -> None:
    launch = replace(FIRST, args=(MAP, np.int32(3)))
    with pytest.raises(LaunchError, match="got 120 bytes; wanted the 128"):
        Frame((launch,), NAMES, encode=lambda _tensor, _address: bytes(120)).bind((1, 2, 3), 0)
    with pytest.raises(LaunchError, match=r"compute capability 9\.0"):
        Frame((launch,), NAMES).bind((1, 2, 3), 0)
    many = Struct(bytes(32800), 8)
    with pytest.raises(LaunchError, match="32800 bytes of parameters; wanted at most 32764"):
        Frame((replace(FIRST, args=(many,)),), NAMES)


def test_clusters_are_an_attribute_of_the_launch() -> None:
    launch = replace(FIRST, grid=(8, 6, 1), cluster=(4, 2, 1))
    frame = Frame((launch, SECOND), NAMES, get("h200"))
    attributes, count = (ctypes.c_uint64 * 2).from_address(frame.calls[0][0] + 40)
    numbers = (ctypes.c_uint * 5).from_address(attributes)
    assert (count & 0xFFFFFFFF, numbers[0], numbers[2:]) == (1, 4, [4, 2, 1])
    assert read_attributes(frame.calls[1][0]) == {}
    assert "cluster (4, 2, 1)" in str(launch)
