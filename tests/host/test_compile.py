"""NVRTC without a GPU: binaries, resources, errors, and the cache between processes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from matmill.errors import CompileError, UnknownNameError
from matmill.jit import compile as compiling
from matmill.jit import nvrtc
from matmill.jit.cache import DiskCache
from matmill.jit.compile import Binary, compile_ptx, compile_source
from matmill.jit.source import Source
from support.examples import examples

TEXT = """extern "C" __global__ void twice(float* x) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = 2.0f * tile[63 - threadIdx.x];
}
"""
SOURCE = Source(kernel="tests.twice", entry="twice", text=TEXT)


pytestmark = pytest.mark.usefixtures("machine_code")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Provide an empty cache folder, and nothing remembered in the process."""
    monkeypatch.setenv("MATMILL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("MATMILL_CACHE", raising=False)
    compiling._remembered.cache_clear()
    compiling._remembered_ptx.cache_clear()
    return tmp_path / "cache"


def _again() -> Binary:
    compiling._remembered.cache_clear()
    compiling._remembered_ptx.cache_clear()
    return compile_source(SOURCE, "sm_90a")


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_89", "sm_90a", "sm_120"])
def test_cubin_and_ptx_for_every_target(target: str) -> None:
    binary = compile_source(SOURCE, target)
    assert binary.cubin.startswith(b"\x7fELF")
    assert type(binary.cubin) is bytes
    assert f".target {target}" in binary.ptx
    assert ".entry twice" in binary.ptx
    assert binary.resources.shared == 256
    assert binary.resources.registers > 0
    assert binary.resources.spill_stores == 0


def test_a_kernel_that_does_not_compile_brings_its_log_and_name() -> None:
    wrong = Source(kernel="tests.wrong", entry="wrong", text='extern "C" __global__ void wrong() { nonsense; }')
    with pytest.raises(CompileError, match=r"tests\.wrong") as caught:
        compile_source(wrong, "sm_90a")
    assert 'identifier "nonsense" is undefined' in caught.value.log


def test_an_unknown_target_names_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match="sm_90"):
        compile_source(SOURCE, "sm_12345")


def test_the_second_time_comes_from_the_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compile_source(SOURCE, "sm_90a")
    assert DiskCache(folder).size()[0] == 1
    monkeypatch.setattr(compiling, "_compile", lambda *_args: pytest.fail("it was compiled"))
    assert _again() == first


def test_a_cached_kernel_does_not_load_the_compiler() -> None:
    script = (
        "import sys; from matmill.jit.compile import compile_source; from matmill.jit.source import Source\n"
        f"compile_source(Source(kernel='tests.twice', entry='twice', text={TEXT!r}), 'sm_90a')\n"
        "print('cuda.bindings.nvrtc' in sys.modules)"
    )
    assert [_in_a_process(script) for _ in range(2)] == ["True", "False"]


def test_without_the_compilers_wheel_its_library_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    major, minor = nvrtc.compiler_version()
    assert f"-{major}.{minor}." in nvrtc.compiler.__wrapped__()
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "gone")])
    assert nvrtc.compiler.__wrapped__() == f"nvrtc {major}.{minor}"


def _in_a_process(script: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(compiling.__file__).parents[2])}
    words = [sys.executable, "-c", script]
    return subprocess.run(words, capture_output=True, text=True, check=True, env=environment).stdout.strip()


def test_an_entry_of_another_version_is_compiled_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[str] = []
    monkeypatch.setattr(DiskCache, "get", lambda _store, key: keys.append(key))
    first = compile_source(SOURCE, "sm_90a")
    monkeypatch.undo()
    monkeypatch.setenv("MATMILL_CACHE_DIR", str(folder))
    DiskCache(folder).put(keys[0], {"registers": 1, "of a later version": 2}, b"cubin", b"ptx")
    assert _again() == first


def _counting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows by the entry of every source that is really compiled; all give the same unit."""
    result: list[str] = []

    def compiled(source: Source, _target: str, *, machine_code: bool = True) -> compiling._CompiledUnit:
        result.append(source.entry)
        resources = {source.entry: compiling.Resources(32, 0, 0, 0, 256)}
        return compiling._CompiledUnit(b"\x7fELF and more" if machine_code else b"", "// é\n.version 8.0\n", resources)

    monkeypatch.setattr(compiling, "_compile", compiled)
    return result


def _rewrite(path: Path, body: bytes) -> None:
    """Give an entry that body, with the right checksum."""
    path.write_bytes(b"matmill-cache-1\n" + hashlib.sha256(body).digest() + body)


_BODY = len(b"matmill-cache-1\n") + 32


@pytest.mark.parametrize(
    ("part", "other"),
    [
        ("é".encode(), b"\xe9"),  # text that is not in UTF-8
        (b"\x7fELF", b"\x00ELF"),
        (b'"registers": 32', b'"registers": "many"'),
        (b'"registers": 32', b'"registers": null'),
        (b'"spill_loads": 0, ', b""),
        (b'{"registers"', b'{"more": 1, "registers"'),
    ],
)
def test_an_entry_with_a_right_checksum_and_wrong_content_is_compiled_anew(
    part: bytes, other: bytes, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = _counting(monkeypatch)
    first = compile_source(SOURCE, "sm_90a")
    (path,) = folder.iterdir()
    sound = path.read_bytes()
    assert part in sound
    _rewrite(path, sound[_BODY:].replace(part, other))
    assert _again() == first
    assert len(result) == 2
    assert path.read_bytes() == sound, "the damaged entry was not written over"
    assert _again() == first
    assert len(result) == 2


def test_ptx_that_is_not_text_is_compiled_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = _counting(monkeypatch)
    first = compile_ptx(SOURCE, "sm_90a")
    (path,) = folder.iterdir()
    _rewrite(path, path.read_bytes()[_BODY:].replace("é".encode(), b"\xe9"))
    compiling._remembered_ptx.cache_clear()
    assert compile_ptx(SOURCE, "sm_90a") == first
    assert len(result) == 2


@examples(200, ignore=[HealthCheck.function_scoped_fixture])
@given(
    edits=st.lists(st.tuples(st.integers(0, 10**6), st.binary(max_size=4), st.integers(0, 4)), min_size=1, max_size=4)
)
def test_no_content_of_an_entry_makes_a_compilation_fail(
    edits: list[tuple[int, bytes, int]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _counting(monkeypatch)
    compile_source(SOURCE, "sm_90a")
    (path,) = folder.iterdir()
    sound = path.read_bytes()
    body = bytearray(sound[_BODY:])
    for position, new, dropped in edits:
        at = position % (len(body) + 1)
        body[at : at + dropped] = new
    _rewrite(path, bytes(body))
    result = _again()
    assert result.cubin.startswith(b"\x7fELF")
    assert isinstance(result.ptx, str)
    assert isinstance(compile_ptx(SOURCE, "sm_90a"), str)
    path.write_bytes(sound)


def test_a_unit_is_compiled_once_for_all_its_entry_points(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = TEXT + 'extern "C" __global__ void bare(float* x) { x[threadIdx.x] = 1.0f; }\n'
    twice, bare = (Source("tests.twice", entry, text) for entry in ("twice", "bare"))
    result: list[str] = []
    real = compiling._compile

    def counted(source: Source, target: str) -> compiling._CompiledUnit:
        result.append(target)
        return real(source, target)

    monkeypatch.setattr(compiling, "_compile", counted)
    first = [compile_source(source, "sm_90a") for source in (twice, bare)]
    assert result == ["sm_90a"]
    assert [binary.entry for binary in first] == ["twice", "bare"]
    assert [binary.resources.shared for binary in first] == [256, 0]
    assert all(binary.resources.registers > 0 for binary in first)
    assert first[0].cubin is first[1].cubin
    compiling._remembered.cache_clear()
    assert [compile_source(source, "sm_90a") for source in (bare, twice)] == first[::-1]
    assert result == ["sm_90a"]
    assert DiskCache(folder).size()[0] == 1


def test_kernels_with_machine_code_of_this_compiler_are_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiling.cached_kernels() == {}
    compile_ptx(SOURCE, "sm_90a")
    assert not compiling.is_cached(SOURCE, "sm_90a")
    for target in ("sm_90a", "sm_80"):
        compile_source(SOURCE, target)
        assert compiling.is_cached(SOURCE, target)
    DiskCache(folder).put("key of another kind", {}, b"", b"")
    (folder / ("0" * 64)).write_bytes(b"garbage")
    assert compiling.cached_kernels() == {"sm_80": 1, "sm_90a": 1}
    monkeypatch.setattr(compiling, "compiler", lambda: "a newer one")
    assert compiling.cached_kernels() == {}
    assert not compiling.is_cached(SOURCE, "sm_80")


def test_texts_of_one_byte_leave_the_process_intact() -> None:
    # NVRTC's empty log is one NUL, and b" " is one object for the whole process: written over, print() loses its space.
    def write(_program: object, buffer: bytearray) -> tuple[int]:
        memoryview(buffer)[0] = 0  # raises where the buffer may not be written
        return (0,)

    assert nvrtc._text(lambda _program: (0, 1), write, None) == ""
    assert b"a b"[1:2][0] == ord(" ")


def test_two_processes_fill_the_cache_at_once(folder: Path) -> None:
    script = (
        "from matmill.jit.compile import compile_source; from matmill.jit.source import Source\n"
        f"print(len(compile_source(Source(kernel='k', entry='twice', text={TEXT!r}), 'sm_90a').cubin))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(compiling.__file__).parents[2])}
    words = [sys.executable, "-c", script]
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(2)]
    text = [child.communicate(timeout=60)[0] for child in both]
    assert text[0] == text[1]
    assert int(text[0]) > 0
    assert [child.returncode for child in both] == [0, 0]
    assert DiskCache(folder).size()[0] == 1


def test_the_folder_it_runs_in_does_not_show_in_the_ptx(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source("k", "k", 'extern "C" __global__ void k(float* x) { x[threadIdx.x] *= 2.0f; }\n')
    texts = []
    for folder in ("/", "/usr"):
        monkeypatch.chdir(folder)
        texts.append(compiling._compile(source, "sm_90a").ptx)
    assert '"k.cu"' in texts[0]
    assert texts[0] == texts[1]


def test_ptx_alone_is_that_of_the_binary_and_is_kept_apart(folder: Path) -> None:
    source = Source("tests.alone", "alone", TEXT.replace("twice", "alone"))
    ptx = compile_ptx(source, "sm_90a")
    assert DiskCache(folder).size()[0] == 1
    binary = compile_source(source, "sm_90a")
    assert (binary.ptx, binary.entry) == (ptx, "alone")
    assert binary.cubin
    assert binary.resources.registers > 0
    assert DiskCache(folder).size()[0] == 2
    # Where there is a binary, its PTX is taken.
    other = Source("tests.other", "other", TEXT.replace("twice", "other"))
    result = compile_source(other, "sm_90a")
    assert compile_ptx(other, "sm_90a") == result.ptx
    assert DiskCache(folder).size()[0] == 3
    with pytest.raises(CompileError, match="sm_90a"):
        compile_ptx(Source("tests.wrong", "wrong", "this is no C++"), "sm_90a")
    with pytest.raises(UnknownNameError, match="sm_12345"):
        compile_ptx(source, "sm_12345")


def test_an_option_that_would_last_does_not_change_later_kernels() -> None:
    text = 'extern "C" __global__ void k(int* to, const int* from) { to[0] = from[0]; to[1] = from[0]; }'
    plain = nvrtc.CompileRequest("k.cu", text, (), ("--gpu-architecture=sm_90a",))
    restricted = replace(plain, options=(*plain.options, "--restrict"))
    before = nvrtc.build(plain, machine_code=False)
    result = nvrtc.build(restricted, machine_code=True)
    assert result.compiled
    assert result.cubin.startswith(b"\x7fELF")
    assert result.ptx.count("ld.global") < before.ptx.count("ld.global")
    assert nvrtc.build(plain, machine_code=False) == before


def test_a_process_of_its_own_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "_CHILD", "raise RuntimeError('no memory')")
    with pytest.raises(CompileError, match=r"RuntimeError: no memory"):
        nvrtc.build(nvrtc.CompileRequest("k.cu", "", (), ("-restrict",)), machine_code=False)


def test_a_digest_is_of_a_source_and_of_all_that_it_includes() -> None:
    source = Source("copy", "copy", "text", (("a.cuh", "1"), ("b.cuh", "2")))
    others = (
        replace(source, text="other text"),
        replace(source, headers=(("a.cuh", "1"), ("b.cuh", "3"))),
        replace(source, headers=(("a.cuh", "1"), ("c.cuh", "2"))),
        replace(source, headers=(("a.cuh", "1"),)),
    )
    assert len({source.digest, *(other.digest for other in others)}) == 1 + len(others)
    assert replace(source, entry="another").digest == source.digest
