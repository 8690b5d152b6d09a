"""Triton's kernels in the emulator: the techniques of its tutorials against NumPy, planted faults, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import matmill
from matmill.errors import ArgumentError, CompileError
from matmill.testing import redirected
from matmill.testing.report import HazardError

triton = pytest.importorskip("triton")
programs: Any = __import__("languages.triton_programs", fromlist=["add"])

RNG = np.random.default_rng(0)
SOURCE = Path(__file__).with_name("triton_programs.py")


def normal(*shape: int, dtype: Any = np.float32) -> NDArray[Any]:
    return RNG.standard_normal(shape).astype(dtype)


def empty(*shape: int, dtype: Any = np.float32) -> NDArray[Any]:
    return np.full(shape, np.nan, dtype)


def line_of(text: str) -> str:
    lines = SOURCE.read_text(encoding="utf-8").splitlines()
    return f"{SOURCE.name}:{next(n for n, line in enumerate(lines, 1) if text in line)}"


def test_arguments_by_position_and_by_name(emulate: Any) -> None:
    x, y, out = normal(300), normal(300), empty(300)
    report = emulate(programs.add, None, 3, None, x, y, n=300, out=out, BLOCK=128, num_warps=2)
    assert (out == x + y).all()
    assert report.launch.block == (64, 1, 1)
    assert "300" not in report.counters.nsight_names()
    with pytest.raises(ArgumentError, match="missing 1 required positional argument: 'out'"):
        emulate(programs.add, None, 3, None, x, y, n=300, BLOCK=128)
    with pytest.raises(ArgumentError, match="wavefronts"):
        emulate(programs.add, None, 3, None, x, y, out, 300, BLOCK=128, wavefronts=3)
    with pytest.raises(ArgumentError, match="block: got 128; wanted None"):
        emulate(programs.add, None, 3, 128, x, y, out, 300, BLOCK=128)
    with pytest.raises(CompileError, match="Triton does not compile"):
        emulate(programs.add, None, 3, None, x, y, out, 300, BLOCK=100)


def test_ptx_text_takes_two_pointers_more() -> None:
    x, out = normal(128), empty(128)
    ptx = matmill.emulate(programs.add, None, 1, None, x, x, out, 128, BLOCK=128).ptx
    assert matmill.emulate(ptx, "add", 1, 128, x, x, out, 128, None, None).ok
    assert (out == 2 * x).all()


def test_softmax(emulate: Any) -> None:
    x, out = normal(37, 781), empty(37, 781)
    emulate(programs.softmax, None, 8, None, x, out, 37, 781, num_warps=8)
    powers = np.exp(x.astype(float) - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(out, powers / powers.sum(axis=1, keepdims=True), rtol=1e-5)


def test_dropout(emulate: Any) -> None:
    x, outs = normal(1000), [empty(1000) for _ in range(3)]
    for out, seed in zip(outs, (123, 123, 512), strict=True):
        emulate(programs.dropout, None, 4, None, x, out, 1000, 0.25, seed, BLOCK=256)
    assert (outs[0] == outs[1]).all()
    kept = outs[0] != 0
    assert 0.7 < kept.mean() < 0.8
    assert ((outs[0] != 0) != (outs[2] != 0)).any()
    np.testing.assert_allclose(outs[0][kept], x[kept] / 0.75, rtol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "near"), [(np.float16, 2e-2), (ml_dtypes.bfloat16, 2e-1), (np.float32, 2e-2), (np.int8, 0)]
)
def test_matmul(emulate: Any, dtype: Any, near: float) -> None:
    m, n, k = 96, 144, 80
    if dtype is np.int8:
        a, b = (RNG.integers(-9, 9, shape, np.int8).astype(np.float16) for shape in ((m, k), (k, n)))
    else:
        a, b = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype)
    c = empty(m, n, dtype=np.float32 if dtype is np.float32 else a.dtype)
    emulate(programs.matmul, None, lambda meta: (-(-m // meta["BM"]), -(-n // meta["BN"])), None, a, b, c, m, n, k)
    np.testing.assert_allclose(c.astype(float), a.astype(float) @ b.astype(float), atol=near * 4, rtol=near / 4)


def test_host_descriptors_are_tensor_maps(emulate: Any) -> None:
    torch = pytest.importorskip("torch")
    tensor = pytest.importorskip("triton.tools.tensor_descriptor").TensorDescriptor
    a, b, c = (torch.from_numpy(each) for each in (normal(128, 96, dtype=np.float16), normal(96, 128, dtype=np.float16),
                                                   empty(128, 128, dtype=np.float16)))  # fmt: skip
    maps = [tensor.from_tensor(each, list(box)) for each, box in ((a, (64, 32)), (b, (32, 64)), (c, (64, 64)))]
    report = emulate(programs.matmul_by_descriptors, None, (2, 2), None, *maps, 96, BM=64, BN=64, BK=32)
    assert report.counters.bulk_loads > 0
    np.testing.assert_allclose(c.double(), a.double() @ b.double(), atol=5e-2)


def test_grouped_matmul_takes_tables_of_arrays(emulate: Any) -> None:
    shapes = [(64, 96, 80), (32, 32, 32), (96, 64, 40)]
    a = [normal(m, k, dtype=np.float16) for m, _, k in shapes]
    b = [normal(k, n, dtype=np.float16) for _, n, k in shapes]
    c = [empty(m, n, dtype=np.float16) for m, n, _ in shapes]
    tables = [np.empty(3, object) for _ in range(3)]
    for table, arrays in zip(tables, (a, b, c), strict=True):
        table[:] = arrays
    emulate(programs.grouped_matmul, None, 4, None, *tables, np.array(shapes, np.int32), 3, PROGRAMS=4, T=32)
    for x, y, z in zip(a, b, c, strict=True):
        np.testing.assert_allclose(z, x.astype(float) @ y.astype(float), atol=5e-2)


def test_layer_norm_forward_and_backward(emulate: Any) -> None:
    m, n, groups = 24, 200, 4
    x, w, b, dy = normal(m, n), normal(n), normal(n), normal(m, n)
    out, means, scales, dx = empty(m, n), empty(m), empty(m), empty(m, n)
    emulate(programs.layer_norm, None, m, None, x, out, w, b, means, scales, n, 1e-5, BLOCK=256)
    scale = 1 / np.sqrt(x.astype(float).var(axis=1, keepdims=True) + 1e-5)
    unit = (x.astype(float) - x.astype(float).mean(axis=1, keepdims=True)) * scale
    np.testing.assert_allclose(out, unit * w + b, atol=1e-5)

    dw, db, locks = np.zeros((groups, n), np.float32), np.zeros((groups, n), np.float32), np.zeros(groups, np.int32)
    emulate(
        programs.layer_norm_backward, None, m, None, dx, dy, dw, db, x, w, means, scales, locks, n, GROUPS=groups,
        BLOCK=256,
    )  # fmt: skip
    weighted = w * dy.astype(float)
    level, along = weighted.mean(axis=1, keepdims=True), (unit * weighted).mean(axis=1, keepdims=True)
    np.testing.assert_allclose(dx, (weighted - unit * along - level) * scale, atol=1e-5)
    for parts, expected in ((dw, (dy * unit).sum(axis=0)), (db, dy.sum(axis=0))):
        sums = empty(n)
        emulate(programs.column_sums, None, 4, None, parts, sums, groups, n, ROWS=4, BLOCK=64)
        np.testing.assert_allclose(sums, expected, atol=1e-4)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("warps", [4, 8])
def test_attention_forward_and_backward(emulate: Any, causal: bool, warps: int) -> None:
    heads, n, d, scale = 2, 128, 64, 0.3
    q, k, v, do = (normal(heads, n, d, dtype=np.float16) for _ in range(4))
    out, logs = empty(heads, n, d, dtype=np.float16), empty(heads, n)
    emulate(
        programs.attention, None, (n // 64, heads), None, q, k, v, out, logs, scale, n, CAUSAL=causal, D=d, BM=64,
        BN=32, num_warps=warps,
    )  # fmt: skip
    exact = [each.astype(float) for each in (q, k, v, do)]
    scores = exact[0] @ exact[1].transpose(0, 2, 1) * scale
    if causal:
        scores[:, ~np.tri(n, dtype=bool)] = -np.inf
    shares = np.exp(scores - scores.max(axis=2, keepdims=True))
    shares /= shares.sum(axis=2, keepdims=True)
    result = shares @ exact[2]
    np.testing.assert_allclose(out, result, atol=5e-3)

    dq, dk, dv = np.zeros((heads, n, d), np.float32), empty(heads, n, d), empty(heads, n, d)
    dots = (result * exact[3]).sum(axis=2).astype(np.float32)
    emulate(
        programs.attention_backward, None, (n // 64, heads), None, q, k, v, do, dq, dk, dv, logs, dots, scale, n,
        CAUSAL=causal, D=d, B=64, num_warps=warps,
    )  # fmt: skip
    slopes = shares * (exact[3] @ exact[2].transpose(0, 2, 1) - dots[:, :, None]) * scale
    np.testing.assert_allclose(dv, shares.transpose(0, 2, 1) @ exact[3], atol=2e-2)
    np.testing.assert_allclose(dq, slopes @ exact[1], atol=2e-2)
    np.testing.assert_allclose(dk, slopes.transpose(0, 2, 1) @ exact[0], atol=2e-2)


def test_an_access_out_of_bounds_names_the_line() -> None:
    report = matmill.emulate(programs.add_without_a_mask, None, 2, None, normal(100), empty(100), 100, BLOCK=64)
    (hazard,) = report.hazards
    assert (hazard.kind, hazard.where) == ("out-of-bounds", line_of("value = tl.load(x + at)"))
    assert "behind the end of x (400 B)" in hazard.message
    assert "value = tl.load(x + at)" in str(report)


def test_a_race_names_the_line() -> None:
    (hazard,) = matmill.emulate(programs.last_program, None, 2, None, np.zeros(1, np.int32)).hazards
    assert (hazard.kind, hazard.where) == ("race", line_of("tl.store(out, where)"))


def test_launches_as_programs_make_them() -> None:
    torch = pytest.importorskip("torch")
    x, out = torch.arange(100.0), torch.empty(100)
    with redirected("triton") as reports:
        programs.add[(1,)](x, x, out, 100, BLOCK=128)
        assert torch.equal(out, 2 * x)
        with pytest.raises(HazardError):
            programs.last_program[(2,)](torch.zeros(1, dtype=torch.int64))
    assert [report.ok for report in reports] == [True, False]
