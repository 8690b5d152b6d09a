"""NVRTC: one translation unit to PTX, and to machine code where that is wanted."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from matmill.errors import CompileError
from matmill.jit.child import last_words, run_in_child

#: Options that NVRTC goes on with in later compilations of the process (seen with 13.0 and 13.5): other kernels would
#: be compiled so too, and kept under keys that do not say it.
_LASTING = frozenset({"--restrict", "-restrict"})
_CHILD = "from matmill.jit import nvrtc; nvrtc.answer_parent()"


@dataclass(frozen=True)
class Request:
    """What NVRTC is asked for.

    ``file`` is the name of ``text`` in messages and line information, ``headers`` are (name, text). The kernels that
    ``names`` spell as C++ does (``scale<float, 4>``) are instantiated; their names in the PTX are in the answer.
    """

    file: str
    text: str
    headers: tuple[tuple[str, str], ...]
    options: tuple[str, ...]
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What NVRTC says: whether it ``compiled``, its log, and what it made."""

    compiled: bool
    log: str
    ptx: str = ""
    cubin: bytes = b""
    lowered: dict[str, str] = field(default_factory=dict)


@cache
def compiler() -> str:
    """Give the compiler's version for cache keys: the wheel's, else the loaded library's.

    The wheel's is read off the file system, because loading NVRTC takes many times as long as reading an entry. It is
    the library that cuda-bindings loads: they look in the folders of ``sys.path`` first.
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
    """Return every plain target the installed NVRTC compiles for, oldest first."""
    from cuda.bindings import nvrtc  # noqa: PLC0415 — see compiler_version

    status, numbers = nvrtc.nvrtcGetSupportedArchs()
    _demand(status, "nvrtcGetSupportedArchs")
    return tuple(f"sm_{number}" for number in sorted(numbers))


def build(request: Request, *, machine_code: bool) -> Answer:
    """Compile a translation unit; source that NVRTC does not accept is an answer, too.

    Options whose effect would last are given to a process of its own.

    Raises :class:`~matmill.errors.CompileError` where NVRTC itself fails.
    """
    if _LASTING.isdisjoint(request.options):
        return _build(request, machine_code=machine_code)
    done = run_in_child(_CHILD, given=json.dumps({**asdict(request), "machine_code": machine_code}))
    _demand(done.returncode, f"a process of its own ({last_words(done)})")
    answer = json.loads(done.stdout)
    return Answer(**{**answer, "cubin": bytes.fromhex(answer["cubin"])})


def answer_parent() -> None:
    """Answer a request in JSON with JSON: the side of the process of its own."""
    request = json.load(sys.stdin)
    machine_code = request.pop("machine_code")
    for name in ("headers", "options", "names"):
        request[name] = tuple(tuple(each) if isinstance(each, list) else each for each in request[name])
    answer = _build(Request(**request), machine_code=machine_code)
    json.dump({**asdict(answer), "cubin": answer.cubin.hex()}, sys.stdout)


def _build(request: Request, *, machine_code: bool) -> Answer:
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
        # NVRTC prefixes the current folder to file names; the same source must give the same PTX everywhere.
        here = str(Path.cwd()).removesuffix("/")  # the root folder ends in a slash as it is
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
    """Return one of NVRTC's texts, whose size is asked for first."""
    status, size = size_of(program)
    _demand(status, "reading the compiler's output")
    # Memory of its own: NVRTC writes in place, and a bytes object of length 1 is one that the whole process shares.
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
