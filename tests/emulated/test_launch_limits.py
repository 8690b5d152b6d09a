"""Launches that no GPU takes: refused with what is wrong, in the emulator before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from matmill.emulator import Memory, run
from matmill.errors import ArgumentError
from matmill.launch import Launch
from support.ptx_tools import HEADER, entry

KIB = 1024
STATIC = ".shared .align 4 .b8 s[{}];"
USE = ".reg .b32 r; mov.u32 r, s;"


def launched(text: str, **changes: Any) -> None:
    """Run entry ``k`` of PTX, a block of one warp unless the changes say otherwise."""
    plain: dict[str, Any] = {"grid": (1, 1, 1), "block": (32, 1, 1), "args": ()}
    run(text, Launch("k", "k", **(plain | changes)), Memory())


def limited(directive: str) -> str:
    return f"{HEADER}.visible .entry k()\n{directive}\n{{\nret;\n}}\n"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"grid": (1, 65536, 1)}, "grid.y = 65536 > 65535"),
        ({"grid": (1, 1, 70000)}, "grid.z = 70000 > 65535"),
        ({"grid": (2**31, 1, 1)}, "grid.x = 2147483648 > 2147483647"),
        ({"grid": (0, 1, 1)}, "grid.x = 0 < 1"),
        ({"grid": (1, -1, 1)}, "grid.y = -1 < 1"),
        ({"block": (0, 1, 1)}, "block.x = 0 < 1"),
        ({"block": (1025, 1, 1)}, "block.x = 1025 > 1024"),
        ({"block": (1, 1025, 1)}, "block.y = 1025 > 1024"),
        ({"block": (1, 1, 65)}, "block.z = 65 > 64"),
        ({"block": (32, 33, 1)}, "1056 threads per block > 1024"),
        ({"block": (1024, 1024, 64)}, "67108864 threads per block > 1024"),
        ({"dynamic_shared": -4}, "-4 bytes of dynamic shared memory"),
        ({"dynamic_shared": 227 * KIB + 1}, "shared memory 232449 > 232448 bytes per block"),
    ],
)
def test_shapes_that_no_gpu_takes(change: dict[str, Any], why: str) -> None:
    with pytest.raises(ArgumentError, match=f"got {why}; wanted a launch that a GPU of compute capability 9.0 takes"):
        launched(entry(""), **change)


@pytest.mark.parametrize("shape", [(1024, 1, 1), (1, 1024, 1), (16, 1, 64)])
def test_the_largest_blocks_run(shape: tuple[int, int, int]) -> None:
    launched(entry(""), block=shape, dynamic_shared=227 * KIB)


@pytest.mark.parametrize(
    ("target", "most"),
    [("sm_61", 48), ("sm_70", 96), ("sm_75", 64), ("sm_80", 163), ("sm_86", 99), ("sm_90", 227), ("sm_120a", 99)],
)
def test_shared_memory_of_the_target(target: str, most: int) -> None:
    text = entry("").replace("sm_90a", target)
    launched(text, dynamic_shared=most * KIB)
    with pytest.raises(ArgumentError, match=f"> {most * KIB} bytes per block"):
        launched(text, dynamic_shared=most * KIB + 1)


def test_static_and_dynamic_shared_memory_count_together() -> None:
    text = entry(USE, declarations=STATIC.format(KIB))
    launched(text, dynamic_shared=226 * KIB)
    with pytest.raises(ArgumentError, match="shared memory 232452 > 232448"):
        launched(text, dynamic_shared=226 * KIB + 4)


def test_static_shared_memory_has_its_own_limit() -> None:
    launched(entry(USE, declarations=STATIC.format(48 * KIB)))
    with pytest.raises(ArgumentError, match="49156 bytes of static shared memory > 49152"):
        launched(entry(USE, declarations=STATIC.format(48 * KIB + 4)))


def test_launch_bounds_of_the_kernel() -> None:
    for directive in (".maxntid 64", ".maxntid 16, 4", ".maxntid 4, 4, 4"):
        launched(limited(directive), block=(64, 1, 1))
        with pytest.raises(ArgumentError, match="96 threads per block > 64"):
            launched(limited(directive), block=(96, 1, 1))
    for directive, shape in (
        (".reqntid 64", (64, 1, 1)),
        (".reqntid 8, 4", (8, 4, 1)),
        (".reqntid 2, 4, 8", (2, 4, 8)),
    ):
        launched(limited(directive), block=shape)
        with pytest.raises(ArgumentError, match=r"got block \(32, 1, 1\), where the kernel is compiled for"):
            launched(limited(directive))
