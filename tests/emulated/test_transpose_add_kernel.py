"""The transpose+add kernel's own PTX in the emulator: every element, whatever the layout, and no access too many."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from emulated.inner_trial import H200, TARGET, without
from matmill.choose import choose_sum
from matmill.compile import compile_source
from matmill.dtypes import BITS, ELEMENTWISE, DType
from matmill.emulator import Memory, Report, run
from matmill.kernel import GemmOperands, Kernel
from matmill.kernels.transpose_add import TRANSPOSE_ADD, space
from matmill.problem import Geam, View
from matmill.source import Source, generate

Array = NDArray[np.generic]
ALIGN = 16


@dataclass(frozen=True)
class Placed:
    """How a matrix is stored: across (its transpose is row-major), elements between lines beyond their own, and before.

    ``apart`` is the distance between neighbours along a line.
    """

    crossed: bool = False
    pad: int = 0
    before: int = 0
    apart: int = 1


def stored(shape: tuple[int, int, int], dtype: DType, how: Placed, rng: np.random.Generator) -> Array:
    """Random matrices of the batch, as they are stored: integers small enough that sums are exact in every type."""
    batch, m, n = shape
    lines, length = (n, m) if how.crossed else (m, n)
    pitch = length * how.apart + how.pad
    values = rng.integers(-60, 60, how.before + batch * lines * pitch).astype(dtype.numpy)
    size = dtype.itemsize
    strides = (lines * pitch * size, pitch * size, how.apart * size)
    found = np.lib.stride_tricks.as_strided(values[how.before :], (batch, lines, length), strides)
    return found.transpose(0, 2, 1) if how.crossed else found


def view_of(x: Array, d: Array, how: Placed) -> View:
    """The operand as the problem describes it; the emulator's buffers start on 16 bytes."""
    size = x.itemsize
    batch, row, column = (stride // size for stride in x.strides)
    line = column if how.crossed else row
    align = gcd(ALIGN, how.before * size, line * size, batch * size)
    apart = [how.before * size - (d.ctypes.data % ALIGN), x.strides[0] - d.strides[0], x.strides[1] - d.strides[1]]
    return View((row, column), batch, align, gcd(ALIGN, *apart))


class Trial:
    """One sum on fresh numbers, D starting as something else; ``in_place`` makes Y and D the same memory."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        dtype: DType,
        places: tuple[Placed, Placed | None, Placed],
        scalars: tuple[float, float] = (1.0, 1.0),
        *,
        number: int | None = None,
        in_place: bool = False,
    ) -> None:
        rng = np.random.default_rng([*shape, dtype.itemsize])
        x, y, d = places
        self.scalars = scalars
        self.d = stored(shape, dtype, d, rng)
        self.x = stored(shape, dtype, x, rng)
        self.y = None if y is None else self.d if in_place else stored(shape, dtype, y, rng)
        batch, m, n = shape
        start = Placed(before=d.before)
        views = [
            view_of(self.x, self.d, x),
            None if self.y is None or y is None else view_of(self.y, self.d, d if in_place else y),
            view_of(self.d, self.d, replace(d, before=start.before)),
        ]
        assert views[0] is not None
        assert views[2] is not None
        plain = y is None and scalars[0] == 1
        own = BITS[dtype.itemsize] if plain else dtype
        self.problem = Geam(m, n, own, views[0], views[1], views[2], batch, plain)
        if number is None:
            self.kernel: Kernel[Geam] = choose_sum(self.problem, H200).kernel
        else:
            configs = space(self.problem, H200)
            self.kernel = TRANSPOSE_ADD.with_config(configs[number % len(configs)])

    def source(self) -> Source:
        """The kernel's source for this problem."""
        return generate(self.kernel, self.problem.dtype)

    def expected(self) -> Array:
        """What D must be afterwards, to the bit: all sums are exact."""
        alpha, beta = self.scalars
        wide = np.int64 if self.x.dtype.kind == "i" else np.float64
        total = self.x.astype(wide) * wide(alpha)
        if self.y is not None:
            total = total + self.y.astype(wide) * wide(beta)
        return total.astype(self.x.dtype)

    def run(self, source: Source | None = None) -> Report:
        """One launch."""
        assert self.kernel.why_not(self.problem, H200) is None
        memory = Memory()
        d = memory.bind("D", self.d, access="rw")
        same = self.y is not None and self.y is self.d
        y = d if same else memory.bind("Y", self.y, access="r")
        operands = GemmOperands(memory.bind("X", self.x, access="r"), y, y, d, *self.scalars)
        ptx = compile_source(source or self.source(), TARGET).ptx
        return run(ptx, self.kernel.launch(self.problem, operands), memory, races=True)


def check(trial: Trial) -> Report:
    """Runs and compares every element."""
    expected = trial.expected()
    report = trial.run()
    assert not report.hazards
    assert trial.d.tobytes() == expected.tobytes()
    return report


ROWS = Placed()
ACROSS = Placed(crossed=True)


@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.parametrize(("m", "n"), [(1, 1), (64, 128), (37, 201), (130, 65)])
def test_a_transpose_and_a_sum(m: int, n: int, name: str) -> None:
    check(Trial((1, m, n), ELEMENTWISE[name], (ACROSS, ROWS, ROWS)))


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_a_transpose_moves_bits(name: str) -> None:
    trial = Trial((1, 50, 70), ELEMENTWISE[name], (ACROSS, None, ROWS))
    assert trial.problem.plain
    check(trial)


def test_a_signalling_nan_stays_what_it_is() -> None:
    trial = Trial((1, 33, 20), ELEMENTWISE["float32"], (ACROSS, None, ROWS))
    bits = trial.x.view(np.uint32)
    bits[0, 5, 7] = 0x7F800001
    trial.run()
    assert trial.d.view(np.uint32)[0, 5, 7] == 0x7F800001


PLACES = st.builds(
    Placed,
    crossed=st.booleans(),
    pad=st.sampled_from([0, 1, 2, 8]),
    before=st.sampled_from([0, 0, 1, 3, 4]),
    apart=st.sampled_from([1, 1, 1, 1, 2]),
)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_layout_and_every_configuration(data: st.DataObject) -> None:
    draw = data.draw
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 150)), draw(st.integers(1, 150)))
    dtype = ELEMENTWISE[draw(st.sampled_from(list(ELEMENTWISE)))]
    d = replace(draw(PLACES), crossed=False)
    y = draw(st.one_of(st.none(), PLACES))
    scalars = (draw(st.sampled_from([1.0, -2.0])), draw(st.sampled_from([1.0, 3.0])))
    check(Trial(shape, dtype, (draw(PLACES), y, d), scalars, number=draw(st.integers(0, 50))))


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("pad", [0, 1])
def test_y_and_d_may_be_the_same_memory(name: str, pad: int) -> None:
    check(Trial((2, 70, 90), ELEMENTWISE[name], (ACROSS, ROWS, Placed(pad=pad)), (2.0, -1.0), in_place=True))


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_an_aligned_transpose_reads_each_sector_once_and_meets_in_no_bank(name: str) -> None:
    dtype = ELEMENTWISE[name]
    side = 256 // dtype.itemsize
    trial = Trial((1, side, side), dtype, (ACROSS, ROWS, ROWS))
    lines = 128 // dtype.itemsize  # of a tile whose lines are 128 bytes both ways
    trial.kernel = TRANSPOSE_ADD.with_config(next(c for c in space(trial.problem, H200) if c["BR"] == c["BC"] == lines))
    counters = check(trial).counters
    assert counters.global_load_sectors * 32 == 2 * side * side * dtype.itemsize
    assert counters.global_store_sectors * 32 == side * side * dtype.itemsize
    # Numbers of less than a word share words, which costs stores passes that no layout of ours avoids.
    assert counters.shared_load_wavefronts == counters.shared_load_wavefronts_ideal


def test_rows_of_any_pitch_are_stored_in_whole_vectors() -> None:
    trial = Trial((1, 64, 1023), ELEMENTWISE["float32"], (ACROSS, ROWS, ROWS))
    counters = check(trial).counters
    assert trial.kernel.config["SHIFTED"] == 1
    assert counters.global_store_bytes == 64 * 1023 * 4
    # Four elements to a lane but for the ends of the rows, where stores of one element would need 32 lanes for 32.
    assert counters.global_store_requests * 32 < 64 * 1023 / 2


def test_a_missing_barrier_is_found() -> None:
    trial = Trial((1, 64, 64), ELEMENTWISE["float32"], (ACROSS, ROWS, ROWS))
    report = trial.run(without(trial.source(), "turn.cuh", "if constexpr (Config::SHARED_BYTES > 0) __syncthreads();"))
    assert report.hazards
