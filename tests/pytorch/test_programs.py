"""The PyTorch programs of ``benchmarks/programs.py``, few of everything on the CPU, and the checks of their results."""

from __future__ import annotations

import importlib
import json
from argparse import Namespace
from math import isfinite
from pathlib import Path
from typing import Any

import pytest

from lab.page_parts import Record
from support.scripts import BENCHMARKS, run_script

torch: Any = pytest.importorskip("torch")

from lab.program_checks import GRADIENTS, LOSSES, gradients_differ, learn, losses_differ, losses_move  # noqa: E402 — needs torch
from lab.programs import PROGRAMS, build  # noqa: E402 — the same
from lab.programs_page import in_pieces, programs  # noqa: E402 — the same
from matmill.torch.gpu import Prepared  # noqa: E402 — the same
from support.decided_gpu import DecidedGPU  # noqa: E402 — the same

script = importlib.import_module("programs")
_TRAINED = [name for name in PROGRAMS if not name.startswith("statistics")]
#: A program whose products include a linear layer and batches, and one with float16's loss scale.
_CHEAP = ("experts", "whisper")


class WrongGPU(DecidedGPU):
    """A stand-in whose kernel negates the products of two matrices of these shapes, and counts them."""

    def __init__(self, wrong: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
        super().__init__()
        self.wrong, self.negated = wrong, 0

    def prepare(self, a: Any, b: Any, addend: Any, precision: str | None, **others: Any) -> Prepared:
        """Return the kernel."""
        prepared = super().prepare(a, b, addend, precision, **others)

        def negate(*operands: Any) -> Any:
            self.negated += 1
            return -prepared.run(*operands)

        return prepared._replace(run=negate) if (tuple(a.shape), tuple(b.shape)) == self.wrong else prepared


class RoundingGPU(DecidedGPU):
    """A stand-in whose kernels round float32 products to that many bits of mantissa."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.bits = bits

    def prepare(self, a: Any, b: Any, addend: Any, precision: str | None, **others: Any) -> Prepared:
        """Return the kernel."""
        prepared = super().prepare(a, b, addend, precision, **others)

        def rounded(*operands: Any) -> Any:
            mantissa, exponent = torch.frexp(prepared.run(*operands))
            return torch.ldexp(torch.round(mantissa * 2**self.bits) / 2**self.bits, exponent)

        return prepared._replace(run=rounded)


def measured(name: str, float32: str | None = None) -> dict[str, Any]:
    """Return the record of a small program."""
    options = Namespace(small=True, rounds=1, float32=float32)
    result: dict[str, Any] = script.measure(name, "cpu", options)
    return result


@pytest.mark.parametrize("name", _TRAINED)
def test_a_program_trains_all_its_parameters(name: str) -> None:
    copy = script.Copy(name, "cpu", small=True)
    losses = []
    for _ in range(4):
        losses.append(float(copy.gradients()))
        for parameter in copy.parameters:
            assert torch.isfinite(parameter.grad).all()
            assert parameter.grad.any()
        learn(copy.parameters)
    assert all(map(isfinite, losses))
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in _TRAINED])
def test_statistics_are_finite_and_the_same_at_every_call(name: str) -> None:
    first, second = (build(name, "cpu", small=True) for _ in range(2))
    assert first.parameters == []
    assert isfinite(first.loss())
    assert float(first.loss()) == float(second.loss())


def test_float16_gradients_reach_the_first_layer() -> None:
    # As many rows as the program has make a mean's gradients small: without a scale the first layers' are zero.
    copy = script.Copy("mlp479", "cpu", small=True)
    loss = copy.loss
    copy.loss = lambda: loss() / 512
    copy.gradients()
    zeros = (copy.parameters[0].grad == 0).float().mean()
    assert float(zeros) < 0.1


@pytest.mark.parametrize("name", _CHEAP)
def test_right_products_agree_and_each_wrong_one_is_noticed(
    name: str, decided: DecidedGPU, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = measured(name)
    assert row["answered_while_checked"] > 0
    assert row["losses_agree"]
    assert row["gradients_agree"]
    assert row["losses_tell"]
    products = list(dict.fromkeys(decided.ours))
    assert len(products) > 5
    for product in products:
        device = WrongGPU(product)
        monkeypatch.setattr(importlib.import_module("matmill.torch.session"), "_DEVICE", device)
        row = measured(name)
        assert device.negated
        assert not (row["losses_agree"] and row["gradients_agree"]), product


def test_losses_notice_gradients_of_zero_and_what_is_not_finite() -> None:
    for name in _CHEAP:
        right, wrong = (script.Copy(name, "cpu", small=True) for _ in range(2))
        expected = right.losses()
        still = [float(wrong.gradients()) for _ in expected]
        bound = LOSSES[PROGRAMS[name].dtype]
        assert losses_differ(expected, still) > 2 * bound
        assert losses_move(expected) > 2 * bound
        assert losses_move(still) == 0
    assert losses_differ([1.0, 1.0], [1.0, float("nan")]) == float("inf")
    assert losses_differ([1.0, float("inf")], [1.0, float("inf")]) == float("inf")


def test_a_nan_in_one_gradient_is_noticed() -> None:
    right, wrong = (script.Copy("experts", "cpu", small=True) for _ in range(2))
    for copy in (right, wrong):
        copy.gradients()
    assert gradients_differ(right.parameters, wrong.parameters) <= GRADIENTS["bfloat16"]
    wrong.parameters[0].grad[0, 0] = float("nan")
    assert gradients_differ(right.parameters, wrong.parameters) == float("inf")


def test_the_script_writes_a_record_whose_table_can_be_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "programs.json"
    arguments = ("--small", "--device", "cpu", "--rounds", 1, "--only", "experts", "statistics", "--out", path)
    assert run_script(monkeypatch, "programs.py", *arguments) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    record: Record = json.loads(path.read_text(encoding="utf-8"))
    assert [row["name"] for row in record["programs"]] == ["experts", "statistics"]
    assert record["environment"]["packages"]["torch"]
    of_gpu = json.loads((BENCHMARKS / "results" / "programs_h200.json").read_text(encoding="utf-8"))
    table = programs({**of_gpu, "programs": record["programs"]})
    for row in record["programs"]:
        assert f"| `{row['name']}`: {row['title']}, {row['dtype']} |" in table


def test_float32_in_pieces_is_measured_against_float64(decided: DecidedGPU, monkeypatch: pytest.MonkeyPatch) -> None:
    row = measured("mlp1201", "float32_tensor")
    assert set(decided.precisions) == {"float32_tensor"}
    assert {product["method"] for product in row["products"]} == {"fp16x3"}
    distances = row["from_float64"]
    for of in ("losses", "gradients"):
        assert 0 < distances[of]["torch"] < 1e-5
        assert distances[of]["matmill"] < 4 * distances[of]["torch"]
    monkeypatch.setattr(importlib.import_module("matmill.torch.session"), "_DEVICE", RoundingGPU(11))
    coarse = measured("mlp1201", "float32_tensor")["from_float64"]
    for of in ("losses", "gradients"):
        assert coarse[of]["matmill"] > 20 * distances[of]["matmill"]
        assert coarse[of]["torch"] == distances[of]["torch"]
    assert "from_float64" not in measured("statistics")


@pytest.mark.usefixtures("decided")
def test_compiled_programs_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(script.MODES, "default", {"backend": "aot_eager"})  # Inductor takes long for the CPU
    options = Namespace(device="cpu", small=True, rounds=1, float32=None)
    row = script.compiled("mlp63", "default", options)
    assert all(row[check] for check in ("losses_agree", "losses_tell", "gradients_agree"))
    assert set(row["seconds"]) == {"torch", "matmill", "torch again"}
    assert row["products"] == []
    assert "x, noise" in script._compiled_line(row)


def test_rows_in_pieces_are_beside_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "programs.json"
    arguments = ("--small", "--device", "cpu", "--rounds", 1, "--out", path, "--only", "statistics")
    of_gpu = json.loads((BENCHMARKS / "results" / "programs_h200.json").read_text(encoding="utf-8"))
    assert in_pieces({"programs": []}) == ""
    for options in ((), ("--float32", "float32_tensor"), ()):
        assert run_script(monkeypatch, "programs.py", *arguments, *options) == 0
        record = json.loads(path.read_text(encoding="utf-8"))
        assert [row["name"] for row in record["programs"]] == ["statistics"]
        assert "from_float64" not in record["programs"][0]
        assert list(record)[-1] == "programs"
    (row,) = record["float32_tensor"]["programs"]
    page = in_pieces({**of_gpu, "float32_tensor": {"environment": of_gpu["environment"], "programs": [row]}})
    assert f"| `statistics`: {row['title']} |" in page
    assert f"{row['from_float64']['losses']['matmill']:.1e} |" in page
    assert run_script(monkeypatch, "programs.py", *arguments, "--float32", "tf32") == 2


def test_the_script_lists_programs_and_needs_a_gpu_or_to_be_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_script(monkeypatch, "programs.py", "--list") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(PROGRAMS)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run_script(monkeypatch, "programs.py") == 3
    assert "--device cpu --small" in capsys.readouterr().err
    assert run_script(monkeypatch, "programs.py", "--only", "nothing") == 2
