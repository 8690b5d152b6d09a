"""CUDA C++ to cubin and PTX through NVRTC, without nvcc, driver or GPU; results are kept on disk."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from matmill.errors import CompileError, UnknownNameError
from matmill.jit.cache import DiskCache
from matmill.jit.nvrtc import Answer, CompileRequest, build, compiler, targets
from matmill.jit.source import Source
from matmill.settings import cache_dir

#: ``-lineinfo`` gives the emulator and profilers source lines; it changes no instruction.
OPTIONS = ("-std=c++17", "-lineinfo", "-default-device", "--ptxas-options=-v")
_ELF = b"\x7fELF"  # the start of machine code
_ENTRY = re.compile(r"Compiling entry function '([^']+)'")  # in the assembler's verbose report


@dataclass(frozen=True)
class Resources:
    """The resources of one entry point as the assembler reports them: registers per thread, the rest in bytes."""

    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    shared: int


#: What stands for resources that nobody has counted.
NO_RESOURCES = Resources(0, 0, 0, 0, 0)


@dataclass(frozen=True)
class Binary:
    """A compiled kernel: machine code for ``target``, its PTX, and its resources."""

    kernel: str
    entry: str
    target: str
    cubin: bytes
    ptx: str
    resources: Resources


@dataclass(frozen=True)
class _CompiledUnit:
    """One compiled translation unit, with the resources of each of its entry points."""

    cubin: bytes
    ptx: str
    resources: dict[str, Resources]


def compile_source(source: Source, target: str) -> Binary:
    """Compile ``source`` for ``target`` (``sm_75`` … ``sm_90a`` … ``sm_120``), or take it from the cache.

    A translation unit is compiled once for all its entry points.

    Raises :class:`~matmill.errors.CompileError` with the compiler's log and the kernel's name.
    """
    unit = _remembered(source, target)
    resources = unit.resources.get(source.entry, NO_RESOURCES)
    return Binary(source.kernel, source.entry, target, unit.cubin, unit.ptx, resources)


def compile_ptx(source: Source, target: str) -> str:
    """Return only the PTX of :func:`compile_source`, which is all that the emulator needs.

    No machine code is made. Raises :class:`~matmill.errors.CompileError` with the compiler's log and the kernel's name.
    """
    return _remembered_ptx(source, target)


def is_cached(source: Source, target: str) -> bool:
    """Tell whether the machine code of ``source`` for ``target`` is on disk, where :func:`compile_source` takes it."""
    return _stored_binary(_store(), _key(source, target)) is not None


def cached_kernels() -> dict[str, int]:
    """Count the kernels on disk whose machine code :func:`compile_source` takes, by target.

    Kernels of another compiler or other options are not among them, nor is PTX alone.
    """
    store, end = _store(), [*OPTIONS, compiler()]
    parts = [key.split("\n") for key in store.stored_keys()] if store is not None else []
    return dict(sorted(Counter(part[1] for part in parts if part[2:] == end).items()))


@lru_cache(maxsize=64)
def answer_to(request: CompileRequest, beside: str) -> Answer:
    """Return NVRTC's answer to a request, with PTX only, from the cache if it is there; refusals are cached too.

    ``beside`` is the part of the cache key that the request does not have: a digest of the headers in its include
    folders.
    """
    texts = "\0".join([request.text, *(part for header in request.headers for part in header)])
    store = _store()
    options = "\n".join(request.options)
    key = "\0".join([request.file, options, "\n".join(request.names), compiler(), beside, texts, "request"])
    entry = store.get(key) if store is not None else None
    try:
        if entry is not None:
            meta, log, ptx = entry
            return Answer(meta["compiled"], log.decode(), ptx.decode(), lowered=dict(meta["lowered"]))
    except (KeyError, ValueError, TypeError):  # an entry that this version did not write
        pass
    answer = build(request, machine_code=False)
    if store is not None:
        meta = {"compiled": answer.compiled, "lowered": answer.lowered}
        store.put(key, meta, answer.log.encode(), answer.ptx.encode())
    return answer


@lru_cache(maxsize=512)
def _remembered(source: Source, target: str) -> _CompiledUnit:
    store = _store()
    return _compile(source, target) if store is None else stored_unit(source, target, store)


def stored_unit(source: Source, target: str, store: DiskCache) -> _CompiledUnit:
    """Return the unit from a cache, compiled into it before where it is missing: once, whoever else asks for it."""
    key = _key(source, target)
    unit = _stored_binary(store, key)
    if unit is None:
        with store.locked(key):
            unit = _stored_binary(store, key)
            if unit is None:
                unit = _compile(source, target)
                meta = {name: asdict(resources) for name, resources in unit.resources.items()}
                store.put(key, meta, unit.cubin, unit.ptx.encode())
                return unit
    store.listed().add(store.path(key).name)
    return unit


@lru_cache(maxsize=512)
def _remembered_ptx(source: Source, target: str) -> str:
    key, store = _key(source, target), _store()
    alone = f"{key}\nptx alone"
    unit = _stored(store, key) or _stored(store, alone)
    if unit is None:
        unit = _compile(source, target, machine_code=False)
        if store is not None:
            store.put(alone, {}, b"", unit.ptx.encode())
    return unit.ptx


@lru_cache(maxsize=4096)
def entry_name(source: Source, target: str) -> str:
    """Return the name of the file that has the machine code of ``source`` in any cache folder."""
    return DiskCache(Path()).path(_key(source, target)).name


def _key(source: Source, target: str) -> str:
    return "\n".join([source.digest, target, *OPTIONS, compiler()])


def _store() -> DiskCache | None:
    folder = cache_dir()
    return DiskCache(folder) if folder is not None else None


def _stored(store: DiskCache | None, key: str) -> _CompiledUnit | None:
    entry = store.get(key) if store else None
    if entry is None or not _readable(entry[0]):
        return None
    meta, cubin, ptx = entry
    try:
        text = ptx.decode()
    except UnicodeDecodeError:
        return None
    return _CompiledUnit(cubin, text, {name: Resources(**numbers) for name, numbers in meta.items()})


def _stored_binary(store: DiskCache | None, key: str) -> _CompiledUnit | None:
    """Return the unit of ``key``, or None if the store has none with machine code."""
    unit = _stored(store, key)
    return unit if unit is not None and unit.cubin.startswith(_ELF) else None


def _readable(meta: dict[str, Any]) -> bool:
    """Tell whether an entry has this version's format: the resources of each entry point by name."""
    known = Resources.__dataclass_fields__.keys()
    return all(
        isinstance(numbers, dict) and numbers.keys() == known and all(type(each) is int for each in numbers.values())
        for numbers in meta.values()
    )


def assembler_report(source: Source, target: str) -> str:
    """Return the assembler's report on ``source``: resources, and remarks such as serialized wgmma products.

    The cache is not used. Raises :class:`~matmill.errors.CompileError` as :func:`compile_source` does.
    """
    return _build(source, target, machine_code=True)[0]


def _compile(source: Source, target: str, *, machine_code: bool = True) -> _CompiledUnit:
    log, ptx, cubin = _build(source, target, machine_code=machine_code)
    return _CompiledUnit(cubin, ptx, {name: parse_resources(log, name) for name in _ENTRY.findall(log)})


def _build(source: Source, target: str, *, machine_code: bool) -> tuple[str, str, bytes]:
    """Return the compiler's log, the PTX, and the machine code if ``machine_code`` is true."""
    # For a virtual architecture NVRTC stops before the assembler.
    architecture = target if machine_code else target.replace("sm_", "compute_", 1)
    options = (f"--gpu-architecture={architecture}", *OPTIONS)
    answer = build(
        CompileRequest(f"{source.entry}.cu", source.text, source.headers, options), machine_code=machine_code
    )
    if not answer.compiled:
        _refuse(source, target, answer.log)
    return answer.log, answer.ptx, answer.cubin


def _refuse(source: Source, target: str, log: str) -> None:
    if "--gpu-architecture" in log:
        raise UnknownNameError(
            argument="target",
            got=repr(target),
            wanted=f"one of {', '.join(targets())} (with suffix 'a' from sm_90 on)",
            fix="Name a GPU that the installed NVRTC supports.",
        )
    raise CompileError(
        argument=f"kernel {source.kernel}",
        got=f"source that does not compile for {target}",
        wanted="CUDA C++ that NVRTC accepts",
        fix=f"The compiler says:\n{log.strip()}",
        log=log,
    )


def parse_resources(log: str, entry: str) -> Resources:
    """Parse the assembler's verbose report (``ptxas -v``) for one entry point."""
    _, heading, section = log.partition(f"Function properties for {entry}\n")
    section = section.split("Compiling entry function")[0] if heading else ""

    def number(pattern: str) -> int:
        match = re.search(pattern, section)
        return int(match.group(1)) if match else 0

    return Resources(
        registers=number(r"Used (\d+) registers"),
        spill_stores=number(r"(\d+) bytes spill stores"),
        spill_loads=number(r"(\d+) bytes spill loads"),
        stack=number(r"(\d+) bytes stack frame"),
        shared=number(r"(\d+) bytes smem"),
    )
