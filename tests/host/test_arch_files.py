"""Arch files: written, found, preferred, and refused where they are not what a probe wrote."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest

from matmill import arch as arches
from matmill import cli
from matmill.arch import ARCHES, Measured, get, load, measured, save, user_file
from matmill.arch import sheet as arch_sheet
from matmill.errors import ArgumentError

FOUND = Measured(
    **{each.name: 1.5 + n for n, each in enumerate(fields(Measured)) if each.type == "float"},
    date="2026-01-02",
    driver="580.1",
    matrix_flops={"float16": 6e14},
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide the user's cache folder, empty, and with it what was read before."""
    monkeypatch.delenv("MATMILL_CACHE", raising=False)
    monkeypatch.setenv("MATMILL_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache" / "arches").mkdir(parents=True)
    return tmp_path / "cache" / "arches"


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide a package that ships arch files."""
    (tmp_path / "package" / "measured").mkdir(parents=True)
    monkeypatch.setattr(arches, "files", lambda _package: tmp_path / "package")
    return tmp_path / "package" / "measured"


def test_without_a_file_nothing_was_measured(shipped: Path) -> None:
    assert list(shipped.iterdir()) == []
    assert measured(get("h200")) is None


def test_the_package_ships_what_an_h200_measured_and_no_rate_is_above_the_data_sheet_s() -> None:
    h200 = get("h200")
    result = measured(h200)
    assert result is not None
    assert 0.85 < result.read_bytes_per_s / h200.dram_bytes_per_s < 1
    assert 0.85 < result.copy_bytes_per_s / h200.dram_bytes_per_s < 1
    assert result.sigma_l1 < result.sigma_l2 < result.sigma_g


def test_what_is_saved_is_found_at_once(folder: Path, shipped: Path) -> None:
    h200 = get("h200")
    assert measured(h200) is None
    path = user_file(h200)
    assert path == folder / "h200.json"
    save(path, h200, FOUND)
    assert load(path) == measured(h200) == FOUND
    assert measured(get("h100")) is None
    save(path, h200, replace(FOUND, sigma_g=700.0))
    again = measured(h200)
    assert again is not None
    assert again.sigma_g == 700.0
    assert list(folder.iterdir()) == [path]
    assert list(shipped.iterdir()) == []


def test_the_user_s_own_file_comes_before_the_shipped_one(folder: Path, shipped: Path) -> None:
    h200 = get("h200")
    save(shipped / "h200.json", h200, replace(FOUND, sigma_g=1.0))
    assert measured(h200) == replace(FOUND, sigma_g=1.0)
    save(folder / "h200.json", h200, FOUND)
    assert measured(h200) == FOUND


def test_a_cache_that_is_off_leaves_the_shipped_file(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    h200 = get("h200")
    save(shipped / "h200.json", h200, FOUND)
    monkeypatch.setenv("MATMILL_CACHE", "off")
    assert user_file(h200) is None
    assert measured(h200) == FOUND


def test_a_file_is_read_once(shipped: Path) -> None:
    h100 = get("h100")
    save(shipped / "h100.json", h100, FOUND)
    assert measured(h100) == FOUND
    (shipped / "h100.json").unlink()
    assert measured(h100) == FOUND


def test_shipped_files_can_all_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MATMILL_CACHE", "off")
    there = Path(arches.__file__).parent / "measured"
    names = {path.stem for path in there.glob("*.json")}
    assert {name for name, arch in ARCHES.items() if measured(arch) is not None} == names


def test_what_cannot_be_written_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="JSON"):
        save(folder / "h200.json", get("h200"), replace(FOUND, sigma_g=float("nan")))

    def full(_self: Path, _target: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="no space"):
        save(folder / "h200.json", get("h200"), FOUND)
    assert list(folder.iterdir()) == []


def _document() -> dict[str, Any]:
    return {"format": 1, "arch": "h200", "title": "H200", "measured": asdict(FOUND)}


def _without(name: str) -> dict[str, Any]:
    document = _document()
    del document["measured"][name]
    return document


def _with(**changes: object) -> dict[str, Any]:
    document = _document()
    document["measured"] |= changes
    return document


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("{", "no JSON"),
        ("\xff", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "no document of format 1"),
        ({**_document(), "format": 2}, "no document of format 1"),
        ({"format": 1}, "other figures"),
        (_without("sigma_g"), "other figures"),
        (_with(sigma_q=1.0), "other figures"),
        (_with(sigma_g=-1), "sigma_g -1"),
        (_with(sigma_g=0), "sigma_g 0"),
        (_with(sigma_g=None), "sigma_g None"),
        (_with(sigma_g=True), "sigma_g True"),
        (_with(clock_hz="fast"), "clock_hz 'fast'"),
        (_with(sigma_g=10**400), "sigma_g 1000"),
        (_with(matrix_flops=3), "matrix_flops 3"),
        (_with(matrix_flops={"float16": -3}), "float16 -3"),
        (_with(date=3), "date 3"),
        (_with(driver=None), "driver None"),
        (json.dumps(_with(sigma_g=1.0)).replace("1.0", "NaN"), "nan"),
        (json.dumps(_with(sigma_g=1.0)).replace("1.0", "1e999"), "inf"),
    ],
)
def test_a_file_that_no_probe_wrote_is_refused_by_name(
    document: str | dict[str, Any], words: str, folder: Path
) -> None:
    text = document if isinstance(document, str) else json.dumps(document)
    (folder / "t4.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ArgumentError, match=words) as caught:
        measured(get("t4"))
    assert "t4.json" in caught.value.argument
    assert "matmill probe" in caught.value.fix
    with pytest.raises(ArgumentError, match=words):
        load(folder / "t4.json")
    assert get("t4").sms == 40  # facts need no file


def test_lanes_are_those_of_the_data_sheet() -> None:
    lanes = {name: get(name).fp32_lanes for name in ("t4", "rtx2080ti", "rtx4090", "a100", "h100", "h200")}
    assert lanes == {"t4": 2560, "rtx2080ti": 4352, "rtx4090": 16384, "a100": 6912, "h100": 16896, "h200": 16896}


def test_matrix_rates_are_each_model_s_own() -> None:
    assert get("t4").matrix_flops == {"float16": 65e12}
    assert get("rtx2080ti").matrix_flops == {"float16": 53.8e12}
    assert set(get("rtx4090").matrix_flops) == {"float16", "bfloat16", "tf32"}
    assert get("h200").matrix_flops == get("h100").matrix_flops
    assert get("k40").matrix_flops == {}
    assert len({*ARCHES.values()}) == len(ARCHES)  # a mapping among the fields does not keep them from being keys


def sheet(folder: Path, **changes: Any) -> Path:
    """Return a file like the one that :mod:`matmill.arch.sheet` shows."""
    shown = "{" + str(arch_sheet.__doc__).partition("{")[2].rpartition("}")[0] + "}"
    path = folder / "mine.json"
    values = {**json.loads(shown), **changes}
    path.write_text(json.dumps({name: value for name, value in values.items() if value != "absent"}), encoding="utf-8")
    return path


def test_a_gpu_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = get(str(sheet(tmp_path, title="My GPU")))
    assert (mine.name, mine.title, mine.capability, mine.target) == ("mine", "My GPU", (8, 9), "sm_89")
    assert (mine.matrix_flops["float16"], mine.registers_per_sm) == (116.5e12, 65536)
    for command in ("why matmul 512x512 512x512", "roofline --n 512", "model gemm --n 512"):
        assert cli.main([*command.split(), "--arch", str(tmp_path / "mine.json")]) == cli.OK
        assert "My GPU" in capsys.readouterr().out
    assert get(str(sheet(tmp_path))).title == "mine"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sms": "absent"}, "no sms"),
        ({"sms": 1.5}, "sms 1.5"),
        ({"sms": 0}, "sms 0"),
        ({"name": ""}, "name ''"),
        ({"name": "../h200"}, "name '../h200'"),
        ({"capability": [8]}, r"capability \[8\]"),
        ({"boost_hz": True}, "boost_hz True"),
        ({"matrix_flops": {"int4": 1e15}}, "matrix_flops"),
        ({"colour": "green"}, "unknown field 'colour'"),
    ],
)
def test_a_sheet_that_lacks_something_says_what(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=rf"^--arch: got '.*mine\.json': {words}"):
        get(str(sheet(tmp_path, **changes)), "--arch")


def test_a_sheet_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{", encoding="utf-8")
    for name, words in (("bad", "no JSON"), ("none", "No such file")):
        with pytest.raises(ArgumentError, match=f"{words}.*wanted a JSON object with name, capability"):
            get(str(tmp_path / f"{name}.json"))


def test_every_arch_says_where_its_figures_are_from() -> None:
    assert all(arch.source for arch in ARCHES.values())
    assert {"l40s", "l4", "a10", "b200", "rtx5090"} < set(ARCHES)
    assert all(arch.fp32_lanes % (64 * arch.sms) == 0 for arch in ARCHES.values() if arch.compiles)
