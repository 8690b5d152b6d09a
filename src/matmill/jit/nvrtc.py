"""NVRTC: one translation unit to PTX, and to machine code if requested."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from matmill.errors import CompileError
from matmill.jit.child import last_words, run_in_child

#: Options that also affect NVRTC's later compilations in the same process (observed with 13.0 and 13.5): other kernels
#: would be compiled with them, and cached under keys without them.
_LASTING = frozenset({"--restrict", "-restrict"})
_CHILD = "from matmill.jit import nvrtc; nvrtc.answer_parent()"


@dataclass(frozen=True)
class CompileRequest:
    """A translation unit for NVRTC.

    ``file`` is the name of ``text`` in messages and line information, ``headers`` are (name, text). Kernels in
    ``names``, in C++'s spelling (``scale<float, 4>``), are instantiated; the answer has their names in the PTX.
    """

    file: str
    text: str
    headers: tuple[tuple[str, str], ...]
    options: tuple[str, ...]
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """NVRTC's result: whether it ``compiled``, its log, and its output."""

    compiled: bool
    log: str
    ptx: str = ""
    cubin: bytes = b""
    lowered: dict[str, str] = field(default_factory=dict)


@cache
def compiler() -> str:
    """Return the compiler's version for cache keys: the wheel's, else the loaded library's.

    The wheel's version is read from the file system: loading NVRTC takes many times as long as reading a cache entry.
    cuda-bindings loads the wheel's library, because it searches the folders of ``sys.path`` first.
    """
    for folder in map(Path, sys.path):
        wheels = sorted(folder.glob("nvidia_cuda_nvrtc-*.dist-info"))
        if wheels and any(folder.glob("nvidia/*/lib/libnvrtc.so.*")):
            return wheels[-1].name
    major, minor = compiler_version()
    return f"nvrtc {major}.{minor}"


@cache
def compiler_version() -> tuple[int, int]:
    """Return NVRTC's version as (major, minor)."""
    # Imported on first use: loading NVRTC's bindings takes 60 ms that `import matmill` must not pay.
    from cuda.bindings import nvrtc  # noqa: PLC0415 — see above

    status, major, minor = nvrtc.nvrtcVersion()
    _demand(status, "nvrtcVersion")
    return int(major), int(minor)


@cache
def targets() -> tuple[str, ...]:
    """Return every plain target that the installed NVRTC compiles for, oldest first."""
    from cuda.bindings import nvrtc  # noqa: PLC0415 — see compiler_version

    status, numbers = nvrtc.nvrtcGetSupportedArchs()
    _demand(status, "nvrtcGetSupportedArchs")
    return tuple(f"sm_{number}" for number in sorted(numbers))


def build(request: CompileRequest, *, machine_code: bool) -> Answer:
    """Compile a translation unit. If NVRTC rejects the source, the answer says so.

    Options with a lasting effect are compiled with in a separate process.

    Raises :class:`~matmill.errors.CompileError` where NVRTC itself fails.
    """
    if _LASTING.isdisjoint(request.options):
        return _build(request, machine_code=machine_code)
    done = run_in_child(_CHILD, given=json.dumps({**asdict(request), "machine_code": machine_code}))
    _demand(done.returncode, f"a process of its own ({last_words(done)})")
    answer = json.loads(done.stdout)
    return Answer(**{**answer, "cubin": bytes.fromhex(answer["cubin"])})


def answer_parent() -> None:
    """Read a request as JSON and write the answer as JSON: the main function of the separate process."""
    request = json.load(sys.stdin)
    machine_code = request.pop("machine_code")
    for name in ("headers", "options", "names"):
        request[name] = tuple(tuple(each) if isinstance(each, list) else each for each in request[name])
    answer = _build(CompileRequest(**request), machine_code=machine_code)
    json.dump({**asdict(answer), "cubin": answer.cubin.hex()}, sys.stdout)


def _build(request: CompileRequest, *, machine_code: bool) -> Answer:
    from cuda.bindings import nvrtc  # noqa: PLC0415 — see compiler_version

    names = [name.encode() for name, _ in request.headers]
    texts = [text.encode() for _, text in request.headers]
    status, program = nvrtc.nvrtcCreateProgram(request.text.encode(), request.file.encode(), len(names), texts, names)
    _demand(status, "nvrtcCreateProgram")
    try:
        for name in request.names:
            (status,) = nvrtc.nvrtcAddNameExpression(program, name.encode())
            _demand(status, f"nvrtcAddNameExpression of {name!r}")
        options = [option.encode() for option in request.options]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            return Answer(compiled=False, log=log)
        lowered = {}
        for name in request.names:
            status, low = nvrtc.nvrtcGetLoweredName(program, name.encode())
            _demand(status, f"nvrtcGetLoweredName of {name!r}")
            lowered[name] = low.decode()
        # NVRTC prefixes file names with the current folder; the same source must yield the same PTX everywhere.
        here = str(Path.cwd()).removesuffix("/")  # the root folder already ends in a slash
        ptx = _text(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program).replace(f'"{here}/', '"')
        cubin = _machine_code(program) if machine_code else b""
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return Answer(compiled=True, log=log, ptx=ptx, cubin=cubin, lowered=lowered)


def _machine_code(program: object) -> bytes:
    from cuda.bindings import nvrtc  # noqa: PLC0415 — see compiler_version

    status, size = nvrtc.nvrtcGetCUBINSize(program)
    _demand(status, "nvrtcGetCUBINSize")
    cubin = bytearray(size)
    (status,) = nvrtc.nvrtcGetCUBIN(program, cubin)
    _demand(status, "nvrtcGetCUBIN")
    return bytes(cubin)


def _text(size_of: Callable[..., tuple[object, int]], fill: Callable[..., tuple[object]], program: object) -> str:
    """Return one of NVRTC's texts; ``size_of`` returns its size."""
    status, size = size_of(program)
    _demand(status, "reading the compiler's output")
    # A bytearray, because NVRTC writes in place, and Python shares bytes objects of length 1.
    buffer = bytearray(size)
    (status,) = fill(program, buffer)
    _demand(status, "reading the compiler's output")
    return buffer.rstrip(b"\0 ").decode(errors="replace")


def _demand(status: object, call: str) -> None:
    if getattr(status, "value", status) != 0:
        raise CompileError(
            argument="NVRTC",
            got=f"{call} answered {status}",
            wanted="success",
            fix="Run `matmill doctor`: it checks the compiler and says what to install.",
        )
