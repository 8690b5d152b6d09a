"""A kernel's machine code: disassembled by CUDA's nvdisasm, its loops found and their instructions counted.

What a loop issues is counted along one path from its head to the branch back: side paths, such as that of a short last
stage, are left out (:func:`main_path`). Loops inside count as often as the caller says.
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matmill.dtypes import DType
from matmill.errors import MatmillError
from matmill.jit.compile import Binary, compile_source
from matmill.jit.source import generate
from matmill.kernel import Kernel

_LINE = re.compile(r"^(\.L\w+):|/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", re.MULTILINE)
_BRANCH = re.compile(r"^(@!?U?P\w+ )?BRA\b.*`\((\.L\w+)\)")
_OPCODE = re.compile(r"(?:@!?U?P\w+ )?(\w+)")
_FFMA_SOURCES = re.compile(r"(?:@!?U?P\w+ )?FFMA\S* R\d+, -?R(\d+)\S*, -?R(\d+)\S*, -?R(\d+)")


def disassembler() -> str:
    """Return the path of nvdisasm. Raises :class:`~matmill.errors.MatmillError` where there is none."""
    try:
        files = importlib.metadata.files("nvidia-cuda-nvdisasm") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    packaged = [str(file.locate()) for file in files if file.name == "nvdisasm"]
    result = packaged[0] if packaged else shutil.which("nvdisasm")
    if result is None:
        raise MatmillError(
            argument="nvdisasm", got="no such program", wanted="CUDA's disassembler", fix="pip install 'matmill[sass]'"
        )
    return result


def listing(cubin: bytes, tool: str) -> str:
    """Return the machine code of a cubin, disassembled."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [tool, "-c", str(path)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@dataclass(frozen=True)
class Code:
    """The instructions of one kernel in order, and where each branch's target stands among them."""

    lines: tuple[str, ...]
    targets: dict[int, int]

    def loops(self) -> list[tuple[int, int]]:
        """Say where loops begin and end: a branch back, and what it goes back to. A lone branch to itself is none."""
        return [(to, at) for at, to in self.targets.items() if to < at]


def code(sass: str, entry: str) -> Code:
    r"""Return the kernel ``entry`` of a :func:`listing`.

    >>> text = ".text.f:\n.L_x_0:\n /*0000*/ FFMA R0, R1, R2, R0 ;\n /*0010*/ @P0 BRA `(.L_x_0) ;\n"
    >>> code(text, "f").loops()
    [(0, 1)]
    """
    own = sass[sass.index(f".text.{entry}:") :]
    lines: list[str] = []
    labels: dict[str, int] = {}
    for label, instruction in _LINE.findall(own.split("\n//--")[0]):
        if label:
            labels[label] = len(lines)
        else:
            lines.append(instruction)
    branches = ((at, _BRANCH.match(line)) for at, line in enumerate(lines))
    return Code(tuple(lines), {at: labels[result[2]] for at, result in branches if result and result[2] in labels})


def compiled(kernel: Kernel[Any], dtype: DType, target: str, tool: str) -> tuple[Binary, Code]:
    """Return a kernel's binary for ``target``, and the code of its entry point, disassembled by ``tool``."""
    binary = compile_source(generate(kernel, dtype), target)
    return binary, code(listing(binary.cubin, tool), kernel.entry)


def opcodes(lines: list[str] | tuple[str, ...]) -> Counter[str]:
    """Say how often each opcode occurs, modifiers and predicates left out.

    >>> opcodes(["@!P0 LDG.E.128 R0, [R2.64]", "FFMA R0, R1, R2, R0", "FFMA R1, R1, R2, R0"])
    Counter({'FFMA': 2, 'LDG': 1})
    """
    return Counter(result[1] for line in lines if (result := _OPCODE.match(line)))


def bank_conflicts(lines: list[str] | tuple[str, ...]) -> int:
    """Say how many FFMA read three registers of one bank, of the two: even and odd ones.

    Such an instruction takes a cycle more, unless the operand caches (``.reuse``) still hold one of the three.

    >>> bank_conflicts(["FFMA R0, R2, R4.reuse, R6", "FFMA R1, R3, R4, R1", "FFMA R0, R2, R2, R0", "FADD R0, R2, R4"])
    1
    """
    sources = ([int(number) for number in result.groups()] for line in lines if (result := _FFMA_SOURCES.match(line)))
    return sum(len(set(three)) == len(three) and len({number % 2 for number in three}) == 1 for three in sources)
