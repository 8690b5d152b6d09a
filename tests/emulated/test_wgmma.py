"""Products of warpgroups: every type, shape, major and swizzle against plain sums, both schedules, and misuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from matmill.emulator.arith.tensor_core import rule_of
from support.tensor_core_rule import sum_of_products
from support.warpgroup_ptx import DTYPES, ROWS, Form, Layout, execute, kernel, matrix, multiplied, once, operands

Array = NDArray[Any]
TYPES = (
    ("f16", "f16", "f32"), ("f16", "f16", "f16"), ("bf16", "bf16", "f32"), ("tf32", "tf32", "f32"),
    ("e4m3", "e4m3", "f32"), ("e5m2", "e4m3", "f16"), ("e4m3", "e5m2", "f32"), ("e5m2", "e5m2", "f32"),
    ("s8", "s8", "s32"), ("u8", "s8", "s32"), ("s8", "u8", "s32"), ("u8", "u8", "s32"),
)  # fmt: skip
LATE = pytest.mark.parametrize("late", [False, True])


def small(form: Form, seed: int = 0) -> tuple[Array, Array, Array]:
    """Return small integers, whose sums every type holds exactly: A, B and C."""
    rng = np.random.default_rng(seed)
    low = 0 if "u8" in {form.a, form.b_type} else -3
    a = rng.integers(low, 4, (ROWS, form.k)).astype(DTYPES[form.a])
    b = rng.integers(low, 4, (form.n, form.k)).astype(DTYPES[form.b_type])
    return a, b, rng.integers(-9, 10, (ROWS, form.n)).astype(DTYPES[form.d])


def product(a: Array, b: Array) -> Array:
    """Return A times the transpose of B, exactly."""
    return np.asarray(a.astype(np.float64) @ b.astype(np.float64).T)


def check(form: Form, **options: Any) -> None:
    """Check that one product of small integers is exact."""
    a, b, c = small(form)
    sign = form.signs[0] * form.signs[1]
    assert (multiplied(form, a, b, c, **options) == c + sign * product(a, b)).all()


# Types, shapes, layouts


@pytest.mark.parametrize("types", TYPES, ids=".".join)
@LATE
def test_every_type(types: tuple[str, str, str], late: bool) -> None:
    a, b, d = types
    for n in (8, 32, 112):
        check(Form(n, a, d, b), late_copies=late)


@pytest.mark.parametrize("types", TYPES, ids=".".join)
def test_a_from_registers(types: tuple[str, str, str]) -> None:
    a, b, d = types
    for late in (False, True):
        check(Form(48, a, d, b, a_layout=None), late_copies=late)


def test_every_n_of_floats() -> None:
    for n in range(8, 257, 8):
        check(Form(n, "bf16", "f32"))


def test_every_n_of_integers() -> None:
    for n in (8, 16, 24, *range(32, 257, 16)):
        check(Form(n, "s8", "s32"))


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("mn_major", [False, True], ids=["k-major", "mn-major"])
def test_every_layout_of_halves(swizzle: int, mn_major: bool) -> None:
    layout = Layout(swizzle, mn_major=mn_major)
    check(Form(72, "f16", "f32", a_layout=layout))
    check(Form(72, "f16", "f32", b_layout=layout))
    check(Form(128, "bf16", "f32", a_layout=layout, b_layout=layout, signs=(-1, 1)))
    check(Form(72, "f16", "f16", a_layout=None, b_layout=layout))


@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
@pytest.mark.parametrize("kind", ["tf32", "e4m3", "u8"])
def test_every_layout_of_other_types(kind: str, swizzle: int) -> None:
    layout = Layout(swizzle)
    check(Form(40 if kind != "u8" else 48, kind, "s32" if kind == "u8" else "f32", a_layout=layout, b_layout=layout))


@pytest.mark.parametrize(
    "layout",
    [
        Layout(128, step=96), Layout(64, step=32), Layout(128, stride=3072), Layout(0, leading=144, stride=4096),
        Layout(0, step=48), Layout(128, mn_major=True, leading=6144, stride=2048), Layout(64, mn_major=True, step=1024),
        Layout(0, mn_major=True, leading=4096, stride=144), Layout(128, mn_major=True, step=64),
    ],
    ids=str,
)  # fmt: skip
def test_parts_of_larger_tiles(layout: Layout) -> None:
    n = 32 if layout == Layout(128, mn_major=True, step=64) else 64
    check(Form(n, "bf16", "f32", b_layout=layout))


# Numbers


@pytest.mark.parametrize(("a_type", "b_type", "d"), [t for t in TYPES if t[2] != "s32"])
def test_sums_are_those_of_the_tensor_cores(a_type: str, b_type: str, d: str) -> None:
    rng = np.random.default_rng(1)
    form = Form(8, a_type, d, b_type)
    a, b = (
        (rng.standard_normal((rows, form.k)) * 2.0 ** rng.integers(-9, 5, (rows, form.k))).astype(DTYPES[kind])
        for rows, kind in ((ROWS, a_type), (8, b_type))
    )
    c = rng.standard_normal((ROWS, 8)).astype(DTYPES[d])
    result = multiplied(form, a, b, c)
    # Without the low bits that tf32 ignores; the other types have none there.
    left, right = ((x.astype(np.float32).view(np.uint32) & 0xFFFFE000).view(np.float32).tolist() for x in (a, b))
    rule = rule_of("sm_90a", a_type, d)
    for row in range(0, ROWS, 5):
        assert result[row].tolist() == [
            sum_of_products(left[row], x, float(c[row, n]), rule) for n, x in enumerate(right)
        ]


@LATE
def test_without_the_old_sums_nan_does_not_matter(late: bool) -> None:
    form = Form(16, "bf16", "f32")
    a, b, c = small(form)
    for scale in ("0", "q"):
        result = multiplied(form, a, b, np.full_like(c, np.nan), scale=scale, late_copies=late)
        assert (result == product(a, b)).all()
    assert np.isnan(multiplied(form, a, b, np.full_like(c, np.nan), late_copies=late)).all()


def test_low_bits_of_tf32_are_ignored() -> None:
    form = Form(8, "tf32", "f32")
    a, b, c = small(form)
    dirty_a, dirty_b = ((x.view(np.uint32) | np.uint32(0x1FFF)).view(np.float32) for x in (a, b))
    assert (multiplied(form, dirty_a, dirty_b, c) == multiplied(form, a, b, c)).all()


def test_integers_wrap_or_are_clamped() -> None:
    a, b = np.full((ROWS, 32), 127, np.int8), np.full((8, 32), 127, np.int8)
    c = np.full((ROWS, 8), 2**31 - 1, np.int32)
    wrapped = multiplied(Form(8, "s8", "s32"), a, b, c)
    clamped = multiplied(Form(8, "s8", "s32", extra=".satfinite"), a, b, c)
    assert (wrapped == 2**31 - 1 + 32 * 127**2 - 2**32).all()
    assert (clamped == 2**31 - 1).all()


@pytest.mark.parametrize("layout", [None, Layout(64)], ids=["registers", "shared"])
def test_bits_that_both_have(layout: Layout | None) -> None:
    # Stored as bytes are, eight bits to each.
    form = Form(16, "u8", "s32", a_layout=layout)
    rng = np.random.default_rng(2)
    a, b = (rng.integers(0, 256, (rows, 32), np.uint8) for rows in (ROWS, 16))
    c = rng.integers(-9, 10, (ROWS, 16), np.int32)
    text = kernel(once(form), form.sums).replace("k32.s32.u8.u8", "k256.s32.b1.b1.and.popc")
    out, report = execute(text, operands(form, a, b, c))
    assert report.ok
    left, right = (np.unpackbits(x, axis=1) for x in (a, b))
    assert (matrix(form, out) == c + product(left, right)).all()
