"""``matmill warm``: what it compiles, each kernel once, is what later calls take from the cache."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest

from matmill import arch as arches
from matmill import cli
from matmill.arrays import inspect
from matmill.cli import main
from matmill.dtypes import ALL
from matmill.errors import CompileError
from matmill.jit import compile as compiling
from matmill.jit.cache import DiskCache
from matmill.jit.source import Source
from matmill.lowering import lower_gemm
from matmill.plan import prepare

pytestmark = pytest.mark.usefixtures("machine_code")
Compiled: TypeAlias = list[tuple[str, str]]
Listing: TypeAlias = Callable[..., str]
#: Products that take several launches: split-K with a sum of its parts, and 16-bit rows off 16 bytes.
_SEVERAL = (256, 256, 65536), (999, 1001, 1003)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide an empty cache folder."""
    monkeypatch.setenv("MATMILL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("MATMILL_CACHE", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Compiled:
    """Provide the (digest, target) of what is compiled, by a compiler that makes machine code of nothing."""
    result: Compiled = []

    def compile_nothing(source: Source, target: str) -> compiling._CompiledUnit:
        result.append((source.digest, target))
        return compiling._CompiledUnit(b"\x7fELF", "", {})

    monkeypatch.setattr(compiling, "_compile", compile_nothing)
    return result


@pytest.fixture
def listing(tmp_path: Path) -> Listing:
    """Provide a function that writes lines to a file and returns its name."""

    def write(*lines: str) -> str:
        path = tmp_path / "shapes.txt"
        path.write_text("\n".join(lines))
        return str(path)

    return write


def _forget() -> None:
    """Drop what the process remembers, as another process would not know it."""
    compiling._remembered.cache_clear()


def _call(m: int, n: int, k: int, dtype: str, layout: str) -> int:
    """Compile as a call on a GPU does, and return the number of its launches."""
    element = ALL[dtype].numpy
    a = np.zeros((m, k) if layout[0] == "n" else (k, m), element)
    b = np.zeros((k, n) if layout[1] == "n" else (n, k), element)
    factors = (x if order == "n" else x.T for x, order in zip((a, b), layout, strict=True))
    operands = [inspect(x, name) for x, name in zip((*factors, np.zeros((m, n), element)), "abd", strict=True)]
    stages = lower_gemm(operands[0], operands[1], None, operands[2])
    return sum(len(ready.binaries) for ready in prepare(stages, arches.get("h200")))


@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_later_calls_compile_nothing(dtype: str, layout: str, compiled: Compiled, listing: Listing) -> None:
    file = listing(*(f"{m} {n} {k}" for m, n, k in _SEVERAL))
    assert main(["warm", "--for", file, "--arch", "h200", "--dtype", dtype, "--layout", layout]) == cli.OK
    assert compiled
    compiled.clear()
    _forget()
    launches = [_call(*sizes, dtype, layout) for sizes in _SEVERAL]
    assert max(launches) > 1
    assert compiled == []
    _call(64, 64, 64, "float64", layout)
    assert compiled  # what was not in the list


def test_the_machine_code_is_there(listing: Listing, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["warm", "--for", listing("8 8 8"), "--dtype", "f64"]) == cli.OK
    _forget()
    monkeypatch.setattr(compiling, "_compile", lambda *_: pytest.fail("compiled again"))
    assert _call(8, 8, 8, "float64", "nn") == 1


def test_each_kernel_is_compiled_once(
    compiled: Compiled, listing: Listing, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = listing("# two layers", "64 48 32", "", "64x48x32  # again", "3x64x48x32")
    arguments = ["warm", "--for", file, "--arch", "h200,t4", "--dtype", "f32,bf16", "--layout", "nn,nt"]
    assert main(arguments) == cli.OK
    count = len(compiled)
    assert count == len(set(compiled)) > 4
    assert {target for _, target in compiled} == {"sm_90a", "sm_75"}
    assert f"24 products, {count} kernels: {count} compiled now, 0 were there; " in capsys.readouterr().out
    _forget()
    assert main([*arguments, "--jobs", "1"]) == cli.OK
    assert len(compiled) == count
    out = capsys.readouterr().out
    assert f"{count} kernels: 0 compiled now, {count} were there; " in out
    assert out.endswith(f"{folder}\n")
    assert main(["cache"]) == cli.OK
    numbers = [sum(target == named for _, target in compiled) for named in ("sm_75", "sm_90a")]
    assert f"kernels: {numbers[0]} for sm_75, {numbers[1]} for sm_90a\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "same", "layout"),
    [
        ("640 48 32", "640x48x32", "nn"),
        ("640x32 32x48", "640 48 32", "nn"),
        ("640x32T 32x48", "640 48 32", "tn"),
        ("5x640x32 5x32x48T", "5x640x48x32", "nt"),
    ],
)
def test_a_product_can_be_written_in_several_ways(
    line: str, same: str, layout: str, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in (line, same):
        monkeypatch.setattr("sys.stdin", io.StringIO(f"{text}\n"))
        assert main(["warm", "--for", "-", "--dtype", "bf16", "--layout", layout]) == cli.OK
    assert len(compiled) == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("64 48", "extents: got 2"),
        ("1 64 48 32", "extents: got 4"),
        ("64x48", "extents: got 2"),
        ("64 48 many", "SHAPE: got '64xmany'"),
        ("64 48 0", "SHAPE: got '64x0'"),
        ("64x48 32x48", "wanted the last dimension of a (48) to equal b's second-last (32)"),
        ("1e18 1e18 1e18", "wanted at most 2**48 elements"),
        ("4096 4096 1e10", "wanted a problem that one of the production kernels takes"),
    ],
)
def test_a_wrong_line_is_named_before_anything_is_compiled(
    line: str, words: str, compiled: Compiled, listing: Listing, capsys: pytest.CaptureFixture[str]
) -> None:
    file = listing("64 48 32", "", line)
    assert main(["warm", "--for", file]) == cli.USAGE
    err = capsys.readouterr().err
    assert err.startswith(f"matmill: --for {file}, line 3: got {line!r}; wanted a product: M N K, ")
    assert words in err
    assert compiled == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--for", "no/such/file"], "--for: got 'no/such/file' ([Errno 2]"),
        (["--for", "/dev/null"], "--for: got '/dev/null' without a product"),
        (["--for", "-", "--arch", "h200,h20"], "--arch: got 'h20'"),
        (["--for", "-", "--dtype", "bf17"], "--dtype: got 'bf17'"),
        (["--for", "-", "--layout", "nm"], "--layout: got 'nm'"),
        (["--for", "-", "--dtype", "bf16", "--precision", "tf32"], "precision: got 'tf32' with dtype bfloat16"),
    ],
)
def test_wrong_options_say_what_to_pass(
    arguments: list[str], words: str, compiled: Compiled, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["warm", *arguments]) == cli.USAGE
    assert words in capsys.readouterr().err
    assert compiled == []


def test_a_cache_that_is_off_is_an_error(
    listing: Listing, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MATMILL_CACHE", "off")
    assert main(["warm", "--for", listing("8 8 8")]) == cli.USAGE
    assert "MATMILL_CACHE: got off" in capsys.readouterr().err


def test_a_kernel_that_does_not_compile_leaves_the_others(
    compiled: Compiled, listing: Listing, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    compile_nothing = compiling._compile

    def compile_but_one(source: Source, target: str) -> compiling._CompiledUnit:
        if not compiled:
            compiled.append((source.digest, target))
            raise CompileError(argument=f"kernel {source.kernel}", got="a typo", wanted="CUDA C++", fix="Correct it.")
        return compile_nothing(source, target)

    monkeypatch.setattr(compiling, "_compile", compile_but_one)
    assert main(["warm", "--for", listing("64 48 32"), "--dtype", "f32,f64,bf16", "--jobs", "1"]) == cli.FAILED
    count = len(compiled)
    assert count > 1
    out, err = capsys.readouterr()
    assert f"{count} kernels: {count - 1} compiled now, 0 were there, 1 failed; " in out
    assert "got a typo" in err


def test_a_kernel_that_cannot_be_kept_is_a_failure(
    compiled: Compiled, listing: Listing, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(DiskCache, "put", lambda *_: None)  # as a full disk does
    assert main(["warm", "--for", listing("64 48 32")]) == cli.FAILED
    assert len(compiled) == 1
    assert "not kept" in capsys.readouterr().err


def test_an_interrupt_begins_no_further_kernel(
    listing: Listing, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[str] = []

    def interrupt(source: Source, _target: str) -> compiling._CompiledUnit:
        begun.append(source.kernel)
        if len(begun) > 1:
            time.sleep(0.3)  # much longer than the main thread takes to see the interrupt
        raise KeyboardInterrupt

    monkeypatch.setattr(compiling, "_compile", interrupt)
    arguments = ["warm", "--for", listing("64 48 32"), "--arch", "t4,a100,h200", "--dtype", "f32,f64,f16"]
    assert main([*arguments, "--jobs", "1"]) == cli.INTERRUPTED
    assert len(begun) < 9
    assert capsys.readouterr().err == "matmill: interrupted\n"
