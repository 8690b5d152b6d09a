"""Sums of tensor cores: results recorded on GPUs, and the fast arithmetic against the rule in exact arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from agreement import matrix
from agreement.case import POISON
from matmill.emulator.arith.exact import Buffers
from matmill.emulator.arith.tensor_core import TensorCore, rule_of
from support.examples import examples
from support.ptx_tools import compile_ptx, launch
from support.tensor_core_rule import sum_of_products

Array = NDArray[Any]
GOLDEN = Path(__file__).parents[1] / "golden" / "tensor_core.npz"
MEASURED = GOLDEN.with_name("h200_mma.npz")
BYTES = GOLDEN.with_name("h100_fp8_mma.npz")
#: A target of each GPU that was recorded.
TARGETS = {"A100": "sm_80", "L40S": "sm_89", "H100": "sm_90a", "H200": "sm_90", "B200": "sm_100a"}
FORMATS: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip
RESULTS: dict[str, type[np.floating[Any]]] = {"f32": np.float32, "f16": np.float16}
BUFFERS = Buffers()


@cache
def recorded() -> dict[str, Array]:
    with np.load(GOLDEN) as file:
        return dict(file)


def cases() -> list[tuple[str, str, str]]:
    """Return GPU, format of A and B, and of D."""
    parts = [name.split("_") for name in recorded() if name.count("_") == 2 and not name.endswith("_c")]
    return [(gpu, factors, sums) for gpu, factors, sums in parts]


def operands(gpu: str, factors: str, rows: int) -> tuple[Array, Array]:
    """Return A and B as float32[k, rows].

    A GPU was given as many columns as its tensor core adds at once, of tf32 four.
    """
    stored = "f16" if factors == "tf32" else factors
    columns = 4 if factors == "tf32" else 8 if gpu in {"A100", "L40S"} else None
    a, b = (
        recorded()[f"{stored}_{x}"][:rows, :columns].view(FORMATS[stored]).astype(np.float32).T.copy() for x in "ab"
    )
    return a, b


def computed(form: tuple[str, str, str], a: Array, b: Array, c: Array) -> Array:
    """Return D on a target, of A and B in a format (float32[k, n] each) and C of D's format."""
    core, out = TensorCore(rule_of(*form), BUFFERS), c.copy()
    core.add(core.factor(a), core.factor(b), out)
    return out


@pytest.mark.parametrize(("gpu", "factors", "sums"), cases())
def test_results_recorded_on_gpus(gpu: str, factors: str, sums: str) -> None:
    wanted = recorded()[f"{gpu}_{factors}_{sums}"]
    a, b = operands(gpu, factors, len(wanted))
    # C was 0 for 8-bit factors, and rounded to nearest for float16 sums.
    c = recorded().get(f"{gpu}_{factors}_c", np.zeros(len(wanted), np.uint32)).view(np.float32)
    result = computed((TARGETS[gpu], factors, sums), a, b, c.astype(RESULTS[sums]))
    assert (result.view(wanted.dtype) == wanted).all()


def test_what_was_recorded() -> None:
    assert {gpu for gpu, _, _ in cases()} == set(TARGETS)
    assert sum(len(recorded()["_".join(case)]) for case in cases()) == 18000


def numbers(kind: str, dtype: Any, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return values of a format in one regime, as float32."""
    if kind == "bits":
        bits = rng.integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8)
        return np.asarray(bits.view(dtype)[..., 0], np.float32)
    info = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call] # ml_dtypes leaves it without types
    normal = rng.standard_normal(shape)
    odd = [0.0, 1.0, -1.0, np.inf, -np.inf, np.nan]
    result: dict[str, Callable[[], Array]] = {
        "normal": lambda: normal,
        "integers": lambda: rng.integers(-8, 9, shape),
        "exponents": lambda: normal * 2.0 ** rng.integers(info.minexp, info.maxexp, shape),
        "subnormal": lambda: rng.integers(-9, 10, shape) * float(info.smallest_subnormal),
        "largest": lambda: np.full(shape, float(info.max)),
        "near 2": lambda: np.full(shape, 2 - float(info.eps)),
        "zeros": lambda: rng.choice([0.0, -0.0, 1.0], shape),
        "special": lambda: rng.choice(odd, shape, p=[0.5, 0.2, 0.2, 0.04, 0.04, 0.02]),
        # Two halves of k, of which the second is the first but for its sign: most of the sum cancels.
        "cancelling": lambda: np.concatenate([normal[: len(normal) // 2], -normal[: -(len(normal) // -2)]]),
    }
    return np.asarray(result[kind]().astype(dtype), np.float32)


KINDS = ("bits", "normal", "integers", "exponents", "subnormal", "largest", "near 2", "zeros", "special", "cancelling")


def drawn(factors: str, kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return values of the factors' format."""
    if factors != "tf32":
        return numbers(kind, FORMATS[factors], shape, rng)
    return (numbers(kind, np.float32, shape, rng).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def equal(found: Array, wanted: Array) -> bool:
    """Tell whether bits are equal, but for NaN's payload."""
    word = f"u{found.dtype.itemsize}"
    return bool(((found.view(word) == wanted.view(word)) | (np.isnan(found) & np.isnan(wanted))).all())


@examples(300)
@given(
    form=st.sampled_from([("f16", "f16"), *((x, "f32") for x in ("f16", "bf16", "tf32", "e4m3", "e5m2"))]),
    kinds=st.tuples(*[st.sampled_from(KINDS)] * 3),
    target=st.sampled_from(["sm_75", "sm_86", "sm_90a", "sm_120"]),
    k=st.sampled_from([4, 8, 16, 32]),
    seed=st.integers(0, 2**32 - 1),
)
def test_fast_sums_are_the_rule(
    form: tuple[str, str], kinds: tuple[str, str, str], target: str, k: int, seed: int
) -> None:
    factors, sums = form
    rng, n = np.random.default_rng(seed), 12
    with np.errstate(all="ignore"):
        a, b = (drawn(factors, kind, (k, n), rng) for kind in kinds[:2])
        c = numbers(kinds[2], RESULTS[sums], (n,), rng).astype(RESULTS[sums])
    rule = rule_of(target, factors, sums)
    wanted = [sum_of_products(a[:, i].tolist(), b[:, i].tolist(), float(c[i]), rule) for i in range(n)]
    assert equal(computed((target, factors, sums), a, b, c), np.array(wanted).astype(c.dtype))


def test_matrices_broadcast() -> None:
    # More products than one piece holds, and rows of A and columns of B apart, as matrix instructions hold them.
    rng, form = np.random.default_rng(0), ("sm_90a", "bf16", "f32")
    a, b = (numbers("normal", FORMATS["bf16"], shape, rng) for shape in ((32, 5, 80, 1), (32, 5, 1, 24)))
    c = rng.standard_normal((5, 80, 24)).astype(np.float32)
    left, right = (np.broadcast_to(x, (32, *c.shape)).reshape(32, -1) for x in (a, b))
    wanted = computed(form, left, right, c.reshape(-1)).reshape(c.shape)
    core = TensorCore(rule_of(*form), BUFFERS)
    core.add(core.factor(a), core.factor(b), c)
    assert equal(c, wanted)


def test_what_the_rules_differ_in() -> None:
    # 1 and eight times 2**-24 (1 + 2**-10): Hopper keeps two bits more than float32 has, Ampere one; neither rounds.
    a, b = np.ones((9, 1), np.float32), np.full((9, 1), 2.0**-12 + 2.0**-22, np.float32)
    b[0] = 1
    a[1:] = 2.0**-12
    zero = np.zeros(1, np.float32)
    a, b = (np.concatenate([x, np.zeros((7, 1), np.float32)]) for x in (a, b))
    assert computed(("sm_90a", "f16", "f32"), a, b, zero) == 1 + 2.0**-21
    # Ampere adds seven to 1, and the last to their sum, from which nothing of it is left.
    assert computed(("sm_80", "f16", "f32"), a, b, zero) == 1 + 3 * 2.0**-23
    # 8-bit factors leave 13 bits.
    assert computed(("sm_90a", "e5m2", "f32"), a, b, zero) == 1


def one(form: tuple[str, str, str], products: list[tuple[float, float]], c: float = 0.0) -> float:
    """Return D of a few products, as a Python number."""
    a, b = np.array(products, np.float32).T[..., None].copy()
    return float(computed(form, a, b, np.array([c], RESULTS[form[2]]))[0])


@pytest.mark.parametrize(("target", "quantum"), [("sm_90a", -158), ("sm_80", -156)])
def test_the_least_quantum_of_float32_sums(target: str, quantum: int) -> None:
    # 2**-149, the least float32, is left only where what is subtracted from it is truncated away.
    least, smaller = (2.0**-74, 2.0**-75), (-(2.0**-70), 2.0 ** (quantum + 70))
    assert one((target, "bf16", "f32"), [least, smaller]) == 0
    assert one((target, "bf16", "f32"), [least, (smaller[0], smaller[1] / 2)]) == 2.0**-149


@pytest.mark.parametrize(("target", "quantum"), [("sm_90a", -46), ("sm_80", -44)])
def test_the_least_quantum_of_float16_sums(target: str, quantum: int) -> None:
    # 2**-25 is halfway between 0 and the least float16; anything more that is not truncated away decides.
    half, more = (2.0**-12, 2.0**-13), (2.0**-23, 2.0 ** (quantum + 23))
    assert one((target, "f16", "f16"), [half, more]) == 2.0**-24
    assert one((target, "f16", "f16"), [half, (more[0] / 2, more[1])]) == 0


def test_zeros_are_positive() -> None:
    assert not np.signbit(one(("sm_90a", "f16", "f32"), [(-0.0, 1.0), (1.0, -0.0)], -0.0))
    assert not np.signbit(one(("sm_90a", "bf16", "f32"), [(-(2.0**-100), 2.0**-100)], -0.0))
    assert not np.signbit(one(("sm_90a", "f16", "f16"), [(-(2.0**-24), 2.0**-10)]))


def replays() -> list[str]:
    with np.load(MEASURED) as file:
        return sorted({name.partition("|")[0] for name in file})


@pytest.mark.parametrize("opcode", replays())
def test_instructions_measured_on_an_h200(opcode: str) -> None:
    # Operands of 24 warps: random bits, any exponents, subnormals, zeros of both signs, largest significands.
    with np.load(MEASURED) as file:
        arrays = {name: file[f"{opcode}|{name}"] for name in "abco"}
    (case,) = (case for case in matrix.CASES if case.name == opcode)
    given = {**arrays, "o": np.full_like(arrays["o"], POISON & 0xFFFFFFFF)}
    result, report = replace(case, grid=(6, 1, 1), arrays=lambda: given).emulate()
    assert report.ok
    assert (result["o"] == arrays["o"]).all()


def byte_forms() -> list[str]:
    """Return types of A, B and D."""
    with np.load(BYTES) as file:
        return sorted({name.rpartition(".")[0] for name in file})


@pytest.mark.parametrize("form", byte_forms())
def test_products_of_8_bit_floats_measured_on_an_h100(form: str) -> None:
    """All bits, those of a NaN too. The sums of Hopper's wgmma, which other targets get, are others."""
    with np.load(BYTES) as file:
        a, b, c, wanted = (np.ascontiguousarray(file[f"{form}.{name}"]) for name in "abcd")
    ptx = compile_ptx(matrix.source_of(matrix.Mma((16, 8, 32), *form.split("."))))
    for target in ("sm_90", "sm_89"):
        arrays = {name: x.reshape(-1).view(np.uint32).copy() for name, x in (("a", a), ("b", b), ("c", c))}
        arrays["o"] = np.full(c.size, POISON & 0xFFFFFFFF, np.uint32)
        launch(ptx.replace(".target sm_90", f".target {target}"), arrays, grid=(len(c), 1, 1), block=(32, 1, 1))
        assert np.array_equal(arrays["o"], wanted.reshape(-1)) == (target == "sm_90")
