"""How products are cut to be streamed: every element once, within the memory there is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matmill.dtypes import ALL, F32, DType
from matmill.errors import LaunchError
from matmill.streaming import BUDGET, BUFFERS, plan_stream
from support.examples import examples
from support.streaming_trial import MIB

SIZES = st.integers(1, 128)
ORDERS = st.sampled_from([(1, 1000), (1000, 1), (-1, 50), (0, 1), (1, 0)])


@examples(200)
@given(
    sizes=st.tuples(SIZES, SIZES, st.integers(0, 10**10)),
    dtype=st.sampled_from(list(ALL.values())),
    gram=st.booleans(),
    orders=st.tuples(ORDERS, ORDERS),
    budget=st.integers(3 * 256 * 128, 2**31),
)
def test_chunks_cover_k_once_and_fit(
    sizes: tuple[int, int, int],
    dtype: DType,
    gram: bool,
    orders: tuple[tuple[int, int], tuple[int, int]],
    budget: int,
) -> None:
    m, n, k = sizes
    n = m if gram else n
    plan = plan_stream(m, n, k, dtype, e_strides=orders[0], f_strides=orders[1], gram=gram, budget=budget)
    count, size = plan.count, dtype.itemsize
    assert (count == 0) == (k == 0)
    assert BUFFERS * plan.buffer_bytes <= budget
    assert plan.length * size % 128 == 0
    ends = [plan.chunk(index) for index in {0, count // 2, count - 1} if 0 <= index < count]
    assert not count or (plan.chunk(0).start, plan.chunk(count - 1).stop) == (0, k)
    assert all(plan.chunk(index).stop == plan.chunk(index + 1).start for index in range(min(count - 1, 5)))
    for chunk in ends:
        length = chunk.stop - chunk.start
        assert 0 < length <= plan.length
        assert chunk.nbytes <= plan.buffer_bytes
        problem, end = chunk.problem, 0
        assert (problem.m, problem.n, problem.k, problem.gram) == (m, n, length, gram)
        strides = (problem.a_row_col, problem.b_row_col[::-1])
        aligns = ((problem.a_align, problem.a_start_align), (problem.b_align, problem.b_start_align))
        for packed, (line, along), (align, start) in zip((chunk.e, chunk.f), strides, aligns, strict=True):
            if packed is None:
                assert gram
                continue
            assert packed.offset >= end
            assert start == 16
            assert packed.offset % 16 == 0
            assert (line, along) == ((packed.pitch, 1) if packed.along_k else (1, packed.pitch))
            assert packed.pitch * size % align == 0
            assert align == 16 or not packed.along_k
            assert packed.pitch >= packed.shape[1]
            end = packed.offset + packed.shape[0] * packed.pitch * size
        assert end == chunk.nbytes


def test_the_plan_does_not_depend_on_memory_while_there_is_enough() -> None:
    plans = {plan_stream(3, 3, 10**9, F32, free=free) for free in (None, BUDGET, 2 * BUDGET, 2**40)}
    assert len(plans) == 1
    (plan,) = plans
    assert 16 * MIB <= plan.buffer_bytes <= 256 * MIB


def test_where_memory_is_short_chunks_are_halved_and_then_refused() -> None:
    halved = plan_stream(3, 3, 10**9, F32, free=BUDGET - 1)
    assert halved == plan_stream(3, 3, 10**9, F32, free=BUDGET // 2)
    assert halved == plan_stream(3, 3, 10**9, F32, budget=BUDGET // 2)
    with pytest.raises(LaunchError, match=r"got 1\.00 MiB of GPU memory.*at least 3\.00 MiB"):
        plan_stream(3, 3, 10**9, F32, free=MIB)
    with pytest.raises(LaunchError, match="got 0 bytes"):
        plan_stream(3, 3, 10**9, F32, free=0)
    with pytest.raises(LaunchError, match="got 1000 bytes"):
        plan_stream(3, 3, 10**9, F32, budget=1000)
