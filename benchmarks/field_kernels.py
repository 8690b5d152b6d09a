"""Public kernels for Hopper, untouched, in the emulator: results, reports, and mistakes planted in copies.

    PYTHONPATH=src python benchmarks/field_kernels.py FOLDER --out benchmarks/results/field_kernels.json

FOLDER has the collections, as their repositories are: ``cutlass``, ``DeepGEMM``, ``ThunderKittens`` and
``flash-attention``; what it lacks is left out. nvcc compiles a driver of ``field/``, which includes the collection's
own files, with its host code. The library makes its kernel's arguments, and the kernel runs in the emulator, with
asynchronous operations that act at once and as late as they may. Results are compared with NumPy in float64. A kernel
that is reported runs again with the fences and barriers that the report asks for. Then each kernel runs with mistakes
in its synchronization. Exits with 1 where a result is wrong, a repaired kernel is reported, or a mistake is not.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lab.field_cases import BF16, CASES, F16, F32, Case, Change
from lab.host_program import FOLDER, HOST_CODE, Nvcc, load_program, load_runtime
from matmill.emulator import Hazard, Order

#: Two units of the last place of the largest value: of the products' tf32 operands where results are float32.
_LIMITS = {BF16: 2 * 2.0**-8, F16: 2 * 2.0**-10, F32: 2 * 2.0**-10}
_ORDERS = {"early": Order(), "late": Order(late_copies=True)}


def _changed(folder: Path, changes: Sequence[Change], target: Path) -> Path:
    """Return ``target`` with links to the collections of ``folder``, and with the changed files.

    Files include each other by relative paths, so that of a changed collection every file is linked.
    """
    changed = {Path(each.file).parts[0] for each in changes}
    for path in (path for path in folder.iterdir() if path.is_dir()):
        if path.name in changed:
            ignored = shutil.ignore_patterns(".git")
            shutil.copytree(path, target / path.name, copy_function=os.symlink, ignore=ignored)
        else:
            (target / path.name).symlink_to(path)
    for each in changes:
        path = target / each.file
        text = path.read_text(encoding="utf-8")
        if each.old not in text:
            raise ValueError(f"{each.file} has no {each.old!r}")
        path.unlink()
        path.write_text(text.replace(each.old, each.new), encoding="utf-8")
    return target


def _kinds(hazards: Sequence[Hazard], severities: Sequence[str]) -> dict[str, int]:
    return dict(Counter(each.kind for each in hazards if each.severity in severities))


@dataclass(frozen=True)
class Runs:
    """The runs of one case of the collections in ``folder``, compiled into ``build``."""

    case: Case
    folder: Path
    build: Path
    runtime: ctypes.CDLL
    nvcc: Nvcc

    @property
    def source(self) -> Path:
        """The driver."""
        return FOLDER / f"{self.case.driver}.cu"

    def ptx(self, changes: Sequence[Change]) -> str:
        """Return the kernels' PTX after some changes."""
        folder = _changed(self.folder, changes, Path(tempfile.mkdtemp(dir=self.build)))
        return self.nvcc.kernels(self.source, self.build / "kernels.ptx", self.case.compiled_with(folder))

    def run(self, library: Path, ptx: str, problem: str, order: str) -> dict[str, Any]:
        """Return the record of one run."""
        sizes = self.case.sizes[problem]
        task = self.case.problem(np.random.default_rng(1), sizes)
        program = load_program(self.runtime, library, ptx, _ORDERS[order])
        begin = time.perf_counter()
        program(task.arrays, sizes)
        seconds = time.perf_counter() - begin
        hazards = [hazard for report in program.reports for hazard in report.hazards]
        error = float(np.abs(task.result.astype(float) - task.wanted).max() / np.abs(task.wanted).max())
        right = error <= _LIMITS[task.result.dtype]
        launches = [f"grid {each.grid}, block {each.block}, cluster {each.cluster}" for each in program.launches]
        first = next((str(each) for each in hazards if each.severity == "error"), "")
        return {
            "problem": problem, "sizes": list(sizes), "order": order, "launches": launches,
            "error": None if np.isnan(error) else error, "right": right, "errors": _kinds(hazards, ("error",)),
            "warnings": _kinds(hazards, ("warning",)), "notes": _kinds(hazards, ("note",)), "first": first,
            "seconds": round(seconds, 2),
        }  # fmt: skip

    def record(self) -> dict[str, Any]:
        """Run the kernel as it is, repaired, and with each mistake."""
        case = self.case
        library, ptx = self.nvcc.program(self.source, self.build, case.compiled_with(self.folder))
        every = [(problem, order) for problem in case.sizes for order in _ORDERS]
        row: dict[str, Any] = {"as it is": [self.run(library, ptx, *each) for each in every]}
        if case.repair:
            ptx = self.ptx(case.repair)
            row["repaired"] = [self.run(library, ptx, *each) for each in every]
        row["mistakes"] = {}
        for name, change in case.mistakes.items():
            ptx = self.ptx((*case.repair, change))
            problem = case.at.get(name, next(iter(case.sizes)))
            row["mistakes"][name] = [self.run(library, ptx, problem, order) for order in _ORDERS]
        return row

    def main(self) -> dict[str, Any]:
        """Run the collection's own program, with the kernels by which it fills and checks its arrays."""
        source, *arguments = self.case.program
        build = self.build / "main"
        build.mkdir()
        library, ptx = self.nvcc.program(self.folder / source, build, self.case.compiled_with(self.folder))
        program = load_program(self.runtime, library, ptx, Order())
        begin = time.perf_counter()
        status = program.main(*arguments)
        return {
            "arguments": arguments, "exit code": status, "launches": len(program.launches),
            "errors": _kinds([each for report in program.reports for each in report.hazards], ("error",)),
            "seconds": round(time.perf_counter() - begin, 1),
        }  # fmt: skip


def _failures(row: Mapping[str, Any]) -> list[str]:
    clean = row.get("repaired", row["as it is"])
    program = row.get("its own program", {})
    return [
        *(f"wrong: {each['problem']}, {each['order']}" for each in row["as it is"] if not each["right"]),
        *(f"reported: {each['problem']}, {each['order']}" for each in clean if each["errors"] or each["warnings"]),
        *(f"not found: {name}" for name, runs in row["mistakes"].items() if not all(each["errors"] for each in runs)),
        *(f"its own program: {program[key]}" for key in ("exit code", "errors") if program.get(key)),
    ]


def main() -> int:
    """Run the cases whose collections the folder has, and write their record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the collections are")
    parser.add_argument("--out", type=Path, help="the record's file; what it has of other cases stays")
    parser.add_argument("--only", default="", help="cases whose driver's name has this text")
    parser.add_argument("--main", action="store_true", help="run example 48's own program too: minutes")
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("-I", dest="include", type=Path, action="append", default=[], help="headers beside nvcc's own")
    options = parser.parse_args()
    record = json.loads(options.out.read_text()) if options.out and options.out.is_file() else {}
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        nvcc = Nvcc(options.nvcc, tuple(f"-I{path}" for path in options.include))
        runtime = load_runtime(Path(scratch), (options.nvcc, *HOST_CODE))
        for name, case in CASES.items():
            if options.only not in case.driver or not (options.folder / case.include[0]).is_dir():
                continue
            build = Path(scratch) / case.driver
            build.mkdir()
            runs = Runs(case, options.folder.resolve(), build, runtime, nvcc)
            row = runs.record()
            if options.main and case.program:
                row["its own program"] = runs.main()
            failures = _failures(row)
            failed = failed or bool(failures)
            print(f"{name}: {'; '.join(failures) or 'right, and every mistake found'}", flush=True)
            record[name] = row
            if options.out:
                options.out.write_text(json.dumps(record, indent=1) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
