"""Any CUDA file to PTX: host code is omitted, headers are found, the kernel has its C++ name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from matmill.cuda_source.declarations import Declaration
from matmill.cuda_source.extents import ArrayShape, constants, evaluate, shape_of, shared_arrays, template_values
from matmill.cuda_source.headers import Gathered, gather, toolkit, toolkit_name
from matmill.cuda_source.host_launch import HostLaunch, host_launch
from matmill.cuda_source.keep import device_text, needed, summary
from matmill.cuda_source.signature import Parameter, compiled, parameters_of
from matmill.cuda_source.statements import Statements
from matmill.cuda_source.stubs import prelude
from matmill.cuda_source.tokens import conditions_at
from matmill.emulator.frontend.names import readable
from matmill.errors import ArgumentError, CompileError
from matmill.jit.compile import answer_to
from matmill.jit.nvrtc import Answer, CompileRequest, build, targets

_PRELUDE = "matmill/prelude.h"
_BASE = re.compile(r"(?:.*::)?(\w+)\s*(<.*>)?\s*$", re.DOTALL)
_REFERENCE = re.compile(r"error: (texture|surface) is not a template")
# The variable in which NVRTC's PTX has the kernel's name.
_NAMES = "__nv_name_map"
_ERRORS = re.compile(r"^(\S+)\(\d+\): error: (.*)$", re.MULTILINE)
_UNDEFINED = re.compile(r'identifier "(\w+)" is undefined')
_ENTRIES = re.compile(r"\.entry\s+([\w$]+)")
_INSTALL = "pip install 'matmill[headers]' brings CUDA's."


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel of a file as PTX.

    ``entry`` is its name in the PTX, ``spelled`` the one in C++. ``parameters`` are the source's, ``lines`` the lines
    of the user's files by location ("k.cu:7"), ``paths`` those files by name; ``left_out`` describes the code that was
    not compiled. ``request`` is what NVRTC was asked, from which :meth:`machine_code` is made.
    """

    ptx: str
    entry: str
    spelled: str
    parameters: tuple[Parameter, ...]
    lines: dict[str, str]
    left_out: tuple[str, ...]
    paths: dict[str, str] = field(default_factory=dict)
    gathered: Gathered | None = None
    template: dict[str, str] = field(default_factory=dict)
    request: CompileRequest | None = None

    def machine_code(self, target: str) -> bytes:
        """Return the same translation unit as machine code; ``target`` is what it was compiled for.

        Raises :class:`~matmill.errors.CompileError` with the assembler's log, for instance for inline PTX that the
        target does not have.
        """
        assert self.request is not None, "PTX has no translation unit"  # noqa: S101 — the caller compiled one
        virtual = f"--gpu-architecture={target.replace('sm_', 'compute_', 1)}"
        options = tuple(f"--gpu-architecture={target}" if each == virtual else each for each in self.request.options)
        answer = build(replace(self.request, options=options), machine_code=True)
        if not answer.compiled:
            raise CompileError(
                argument=self.request.file,
                got=f"code that does not assemble for {target}",
                wanted=f"instructions that {target} has",
                fix=f"Name another --target, or guard the code by __CUDA_ARCH__. ptxas says:\n{answer.log.strip()}",
                log=answer.log,
            )
        return answer.cubin

    @cached_property
    def statements(self) -> Statements:
        """The control statements of its files."""
        gathered = self.gathered
        # By their names in the PTX, which have no folders.
        texts = (
            [] if gathered is None else [(Path(name).name, gathered.originals[name]) for name, _, _ in gathered.files]
        )
        return Statements(texts)

    @cached_property
    def _constants(self) -> dict[str, str]:
        return constants([file for _, _, file in self.gathered.files], {}) if self.gathered is not None else {}

    def constant(self, text: str) -> int | None:
        """Return the value of an expression of the source's constants, if it is known."""
        return evaluate(text, self._constants) if text else None

    def host_launch(self) -> HostLaunch:
        """Return a launch of it as the host code makes it, as far as that is known."""
        texts = self.gathered.originals.values() if self.gathered is not None else ()
        return host_launch(texts, _base(self.spelled), self._constants)

    def shapes(self, variables: Iterable[tuple[str, int]]) -> dict[str, ArrayShape]:
        """Return the shapes of shared arrays by their names in the PTX, if the source determines them."""
        if self.gathered is None:
            return {}
        files = [file for _, _, file in self.gathered.files]
        arrays = shared_arrays(files, self.template)
        names = constants(files, self.template)
        result = {}
        for name, size in variables:
            simple = readable(name).rsplit("::", 1)[-1]
            shapes = {shape_of(size, each, names) for each in arrays.get(simple, ())} - {None}
            if len(shapes) == 1 and (shape := shapes.pop()) is not None:
                result[name] = shape
        return result


def kernels(
    text: str, name: str = "kernel.cu", *, folder: Path | None = None, include: Sequence[Path] = ()
) -> list[str]:
    """Return the kernels of a file, in the form that :func:`compile_unit` takes.

    For templates these are the instantiations that the file launches.

    >>> kernels("__global__ void a() {} template <int N> __global__ void b() {} int main() { b<3><<<1, 1>>>(); }")
    ['a', 'b<3>']
    """
    return _choices(gather(text, name, folder, include))


def compile_unit(
    text: str,
    name: str,
    entry: str | None = None,
    *,
    folder: Path | None = None,
    include: Sequence[Path] = (),
    options: Sequence[str] = (),
    target: str = "sm_90a",
) -> CompiledKernel:
    """Compile the kernel ``entry`` of the file ``name`` with the contents ``text``.

    ``entry`` is the kernel's name in C++, with the arguments of a template; None means the only kernel. ``folder`` has
    the file's own headers, ``include`` are folders of other headers, ``options`` are NVRTC's.

    Raises :class:`~matmill.errors.ArgumentError` for a kernel that the file does not have, and
    :class:`~matmill.errors.CompileError` with the compiler's log.
    """
    gathered = gather(text, name, folder, include)
    try:
        spelled = _entry(entry, gathered)
    except ArgumentError as unknown:
        spelled = _compiled_entry(entry, gathered, options, target, unknown)
    base = _base(spelled)
    declared = [d for d in _kernels(gathered) if base in d.names]
    mangled = not declared
    if declared and "::" not in spelled:
        spelled = "::".join([*declared[0].path, spelled])
    answer, dropped, request = _compiled(
        gathered, spelled if not mangled else "", base if not mangled else None, options, target
    )
    lowered = answer.lowered.get(spelled, spelled)
    return CompiledKernel(
        ptx=answer.ptx,
        entry=lowered,
        spelled=spelled,
        parameters=compiled(parameters_of(declared[0]), readable(lowered)) if declared else (),
        lines=_lines(gathered, name),
        left_out=_left_out(gathered, dropped),
        paths={path.name: str(path) for _, path, _ in gathered.files if path is not None},
        gathered=gathered,
        template=template_values(declared[0], spelled) if declared else {},
        request=request,
    )


def _compiled(
    gathered: Gathered, spelled: str, base: str | None, options: Sequence[str], target: str
) -> tuple[Answer, list[Declaration], CompileRequest]:
    """Return NVRTC's answer for annotated device code only, else with functions that are not annotated.

    If NVRTC accepts neither, the whole file is compiled. (nvcc treats functions without ``__device__`` as host code.
    Sources for NVRTC often omit the annotation.)
    """
    refusal = None
    for host_functions in (False, True, None):
        request, dropped = _request(gathered, spelled, base, options, target, host_functions=host_functions)
        answer = answer_to(request, toolkit_name())
        if answer.compiled:
            return answer, dropped, request
        refusal = refusal or answer
        if not dropped:
            break
    assert refusal is not None  # noqa: S101 — the loop has run
    raise _refused(gathered, refusal.log, target, spelled)


def _request(
    gathered: Gathered,
    spelled: str,
    base: str | None,
    options: Sequence[str],
    target: str,
    *,
    host_functions: bool | None,
) -> tuple[CompileRequest, list[Declaration]]:
    files = [file for _, _, file in gathered.files]
    texts, dropped = [file.text for file in files], []
    if host_functions is not None:
        kept = needed(files, base, spelled, host_functions=host_functions)
        pairs = [device_text(file, kept, host_functions=host_functions) for file in files]
        texts = [text for text, _ in pairs]
        dropped = [d for _, each in pairs for d in each]
    folders = toolkit()
    headers = [(_PRELUDE, prelude(texts, cccl=any(f.name == "cccl" for f in folders)))]
    headers += [*gathered.stubs.items()]
    headers += [(name, text) for (name, _, _), text in zip(gathered.files[1:], texts[1:], strict=True)]
    name = gathered.files[0][0]
    text = f'#include "{_PRELUDE}"\n#line 1 "{name}"\n{texts[0]}'
    standard = () if any(re.match(r"-{1,2}std\b", option) for option in options) else ("-std=c++17",)
    given = (
        f"--gpu-architecture={target.replace('sm_', 'compute_', 1)}",
        "-lineinfo",
        "-default-device",
        # As nvcc has it.
        "--device-int128",
        # CCCL defines the prelude's limits again, with the same value in other digits.
        "--diag-suppress=47",
        *standard,
        *(f"--include-path={folder}" for folder in folders),
        *options,
    )
    return CompileRequest(name, text, tuple(headers), given, (spelled,) if spelled else ()), dropped


def _base(spelled: str) -> str:
    match = _BASE.match(spelled)
    return match[1] if match is not None else spelled


def _kernels(gathered: Gathered) -> list[Declaration]:
    """Return the kernels with a body."""
    return [d for _, _, file in gathered.files for d in file.declarations if d.kernel and d.body]


def _choices(gathered: Gathered) -> list[str]:
    declared = _kernels(gathered)
    names = constants([file for _, _, file in gathered.files], {})
    launches = [_in_numbers(each, names) for _, _, file in gathered.files for each in file.launches]
    choices: dict[str, None] = {}
    for declaration in declared:
        for name in declaration.names:
            spelled = "::".join([*declaration.path, name])
            if declaration.template:
                choices |= dict.fromkeys(each for each in launches if _base(each) == name and "<" in each)
            else:
                choices[spelled] = None
    return list(choices)


def _in_numbers(launched: str, names: Mapping[str, str]) -> str:
    """Return a launched kernel with the values of constants among its template's arguments, which may be the host's."""
    base, bracket, arguments = launched.partition("<")
    values = {word: evaluate(word, names) for word in re.findall(r"\b[A-Za-z_]\w*\b", arguments) if word in names}
    for word, value in values.items():
        arguments = arguments if value is None else re.sub(rf"\b{word}\b", str(value), arguments)
    return base + bracket + arguments


def _entry(entry: str | None, gathered: Gathered) -> str:
    """Return the selected kernel as C++ writes it."""
    choices = _choices(gathered)
    declared = {name: d for d in _kernels(gathered) for name in d.names}
    if entry is None and len(choices) == 1:
        return choices[0]
    base = _base(entry) if entry is not None else ""
    if entry is not None and (
        entry.startswith("_Z") or (base in declared and ("<" in entry or not declared[base].template))
    ):
        return entry
    templates = {name: d for name, d in declared.items() if d.template}
    launched = [each for each in choices if _base(each) == base]
    if base in templates and len(launched) == 1:
        return launched[0]
    others = [_with_parameters(name, d) for name, d in templates.items() if name not in map(_base, choices)]
    known = list(dict.fromkeys([*choices, *others]))
    fix = "Name one of them, with the arguments of a template: 'scale<float, 4>'."
    raise ArgumentError(
        argument="entry",
        got=repr(entry) if entry is not None else "nothing",
        wanted=f"one of {', '.join(launched or known)}" if known else "a file with a kernel (__global__)",
        fix=fix if known else "Name the file that has it.",
    )


def _compiled_entry(
    entry: str | None, gathered: Gathered, options: Sequence[str], target: str, unknown: ArgumentError
) -> str:
    """Return the kernel's name from the compiled file, if the reader of declarations does not know it.

    Raises ``unknown`` if the file has no more kernels than the reader knows, or does not compile as a whole.
    """
    if not any("__global__" in file.text for _, _, file in gathered.files):
        raise unknown
    request, _ = _request(gathered, "", None, options, target, host_functions=None)
    answer = answer_to(request, toolkit_name())
    entries: list[str] = _ENTRIES.findall(answer.ptx)
    names = {name: _base(readable(name).partition("(")[0]) for name in entries}
    chosen = [name for name, base in names.items() if entry is None or entry in {name, base}]
    if len(chosen) == 1:
        return chosen[0]
    if not names or _choices(gathered):
        raise unknown
    raise ArgumentError(
        argument="entry",
        got=repr(entry) if entry is not None else "nothing",
        wanted=f"one of {', '.join(names.values())}",
        fix="Name one of them.",
    )


def _with_parameters(name: str, declaration: Declaration) -> str:
    """Return a kernel's name, for a template with its parameters."""
    parameters = ", ".join(declaration.template_parameters)
    return f"{name}<{parameters or '...'}>" if declaration.template else name


def _conditions(gathered: Gathered, base: str) -> list[str]:
    """Return the conditions around a kernel's declaration."""
    for _, _, file in gathered.files:
        for declaration in file.declarations:
            if declaration.kernel and base in declaration.names:
                return conditions_at(file.directives, declaration.start)
    return []


def _lines(gathered: Gathered, name: str) -> dict[str, str]:
    return {
        f"{Path(spelled).name if path is not None else name}:{number}": line
        for spelled, path, _ in gathered.files
        for number, line in enumerate(gathered.originals[spelled].splitlines(), 1)
    }


def _left_out(gathered: Gathered, dropped: Sequence[Declaration]) -> tuple[str, ...]:
    lines = [summary(dropped)] if summary(dropped) else []
    if gathered.host:
        lines.append("host headers: " + ", ".join(gathered.host))
    if gathered.missing:
        lines.append("headers that were not found: " + ", ".join(gathered.missing))
    return tuple(lines)


def _refused(gathered: Gathered, log: str, target: str, spelled: str) -> CompileError | ArgumentError:
    base = _base(spelled)
    # If only the kernel is missing, the file declares it in a branch of #if that is not taken.
    conditions = _conditions(gathered, base) if set(_UNDEFINED.findall(log)) == {base} else []
    if conditions:
        return ArgumentError(
            argument="entry",
            got=f"{base!r}, which the preprocessor leaves out",
            wanted=f"a kernel that is compiled; this one is behind {' and '.join(conditions)}",
            fix="Define what that asks for, as in options=['-DNAME'], or on the command line -D NAME.",
        )
    errors = _ERRORS.findall(log)
    if errors and all(file == _NAMES for file, _ in errors):
        declared = [d for d in _kernels(gathered) if base in d.names]
        return ArgumentError(
            argument="entry",
            got=repr(spelled),
            wanted=" or ".join(_with_parameters(base, d) for d in declared) or "a kernel of the file",
            fix=f"The compiler says: {errors[0][1]}.",
        )
    if "--gpu-architecture" in log:
        return ArgumentError(
            argument="target",
            got=repr(target),
            wanted=f"one of {', '.join(targets())} (with suffix 'a' from sm_90 on)",
            fix="Name a GPU that the installed NVRTC supports.",
        )
    install = _INSTALL + (" nvidia-curand has curand_kernel.h." if any("curand" in m for m in gathered.missing) else "")
    missing = f" These headers were not found: {', '.join(gathered.missing)}; name their folder. {install}"
    host = f" These were left out as host headers: {', '.join(gathered.host)}." if gathered.host else ""
    reference = _REFERENCE.search(log)
    removed = (
        f"CUDA 12 has removed {reference[1]} references ({reference[1]}<...>): pass a "
        f"cuda{reference[1].capitalize()}Object_t to the kernel. "
        if reference is not None
        else ""
    )
    return CompileError(
        argument=gathered.files[0][0],
        got=f"device code that does not compile for {target}",
        wanted="CUDA C++ that NVRTC accepts",
        fix=f"{removed}The compiler says:\n{log.strip()}\n{missing if gathered.missing else ''}{host}".rstrip(),
        log=log,
    )
