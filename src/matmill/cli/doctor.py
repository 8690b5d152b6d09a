"""``matmill doctor``: what is installed, what works, and advice for what does not."""

from __future__ import annotations

import argparse
import platform
import stat
import sys
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from matmill import __version__
from matmill.bench.environment import PACKAGES, cpu_name, installed_version, nvidia_smi
from matmill.cli.cache import by_target
from matmill.cli.console import output, show_json
from matmill.cli.doctor_child import ask
from matmill.cli.options import Subparsers
from matmill.jit.cache import DiskCache
from matmill.jit.compile import cached_kernels
from matmill.settings import cache_dir

#: The purpose of each optional distribution; all others are required.
OPTIONAL = {
    "matplotlib": "plots: pip install 'matmill[plots]'",
    "torch": "torch arrays and the cuBLAS baseline: pip install torch",
    "cupy-cuda13x": "CuPy arrays and the cuBLAS baseline: pip install cupy-cuda13x",
    "cupy-cuda12x": "",
    "jax": "JAX arrays: pip install jax",
    "scikit-learn": "the examples on real data: pip install scikit-learn",
    "nvidia-cuda-cuobjdump": "machine code listings: pip install 'matmill[sass]'",
    "nvidia-cuda-nvdisasm": "",
    "opt_einsum": "einsum of more than two arrays: pip install 'matmill[einsum]'",
}
_REQUIRED = tuple(name for name in PACKAGES if name not in OPTIONAL)


@dataclass(frozen=True)
class Line:
    """One finding: its subject, the result, whether that is fine, and the advice if it is not."""

    what: str
    found: str
    ok: bool = True
    advice: str = ""


def add_parser(subparsers: Subparsers) -> None:
    """Declare the command's arguments."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "doctor",
        help="what is installed, which GPU, which compiler, and what to do about what is missing",
        description="Check this machine. Exit code 0 where matmill can be used, with a GPU or without one.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Examine the machine and print the findings."""
    findings = examine()
    if args.json:
        show_json(findings)
    else:
        console = output()
        for line in lines(findings):
            mark = Text("ok  " if line.ok else "--  ", style="green" if line.ok else "yellow")
            console.print(mark + Text(f"{line.what:<12}", style="bold") + Text(line.found), soft_wrap=True)
            if line.advice:
                console.print(Text(" " * 16 + line.advice, style="yellow"), soft_wrap=True)
        console.print(
            "matmill can be used." if findings["ok"] else "matmill cannot be used: see above.", soft_wrap=True
        )
    return 0 if findings["ok"] else 1


def examine() -> dict[str, Any]:
    """Return all findings as one record; it is ``ok`` if kernels compile, as the emulator needs."""
    compiler = ask("compiler")
    compiles = "error" not in compiler
    gpu = ask("gpu")
    packages = {name: installed_version(name) for name in (*PACKAGES, *OPTIONAL)}
    return {
        "ok": compiles and all(packages[name] for name in _REQUIRED),
        "matmill": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "compiler": compiler,
        "gpu": gpu if "error" not in gpu else {"available": False, "reason": gpu["error"]},
        "driver": nvidia_smi(),
        "packages": packages,
        "cache": _cache(compiles=compiles),
    }


def lines(findings: dict[str, Any]) -> list[Line]:
    """Return the findings as lines, in reading order."""
    return [
        Line("matmill", findings["matmill"]),
        Line("python", f"{findings['python']} ({findings['executable']})"),
        Line("platform", f"{findings['platform']}, {findings['cpu']}"),
        _compiler_line(findings["compiler"]),
        _gpu_line(findings["gpu"]),
        _driver_line(findings["driver"]),
        *_package_lines(findings["packages"]),
        _cache_line(findings["cache"]),
    ]


def _cache(*, compiles: bool) -> dict[str, Any]:
    folder = cache_dir()
    if folder is None:
        return {"folder": None, "usable": False, "mode": None, "entries": 0, "bytes": 0, "kernels": {}}
    store = DiskCache(folder)
    entries, size = store.size()
    mode = f"{stat.S_IMODE(folder.stat().st_mode):04o}" if folder.is_dir() else None
    record = {"folder": str(folder), "usable": store.writable(), "mode": mode, "entries": entries, "bytes": size}
    # Kernels count if they are of this compiler, and one in trouble may not tell its version.
    return record | {"kernels": cached_kernels() if compiles else {}}


def _compiler_line(compiler: dict[str, Any]) -> Line:
    if "error" in compiler:
        return Line("compiler", compiler["error"], ok=False, advice="pip install nvidia-cuda-nvrtc cuda-bindings")
    oldest, newest = compiler["targets"][0], compiler["targets"][-1]
    trial = f"a trial kernel compiled in {compiler['trial_seconds'] * 1e3:.0f} ms"
    return Line("compiler", f"NVRTC {compiler['version']}, {oldest} to {newest}; {trial}")


def _gpu_line(gpu: dict[str, Any]) -> Line:
    if gpu["available"]:
        return Line("GPU", f"{gpu['title']} ({gpu['target']}, {gpu['sms']} SMs)")
    advice = "Kernels run in the emulator, and matmul on NumPy's BLAS, until an NVIDIA GPU with a driver is here."
    return Line("GPU", f"none: {gpu['reason']}", ok=False, advice=advice)


def _driver_line(gpus: list[dict[str, str]] | None) -> Line:
    if not gpus:
        return Line("driver", "nvidia-smi: not found, or no answer", ok=False)
    return Line("driver", "; ".join(f"{g['name']}, driver {g['driver_version']}, {g['memory.total']}" for g in gpus))


def _package_lines(packages: dict[str, str | None]) -> list[Line]:
    present = ", ".join(f"{name} {version}" for name, version in packages.items() if version)
    lines = [Line("packages", present)]
    for name, version in packages.items():
        if version is None and name not in OPTIONAL:
            lines.append(Line("missing", name, ok=False, advice=f"Required: pip install {name}"))
        elif version is None and OPTIONAL[name]:
            lines.append(Line("optional", f"{name} is not installed", advice=OPTIONAL[name]))
    return lines


def _cache_line(cache: dict[str, Any]) -> Line:
    if cache["folder"] is None:
        return Line("cache", "off (MATMILL_CACHE): every run compiles its kernels again")
    if not cache["usable"]:
        advice = "Every run compiles its kernels again. Name another folder in MATMILL_CACHE_DIR."
        return Line("cache", f"{cache['folder']}: no folder that can be written", ok=False, advice=advice)
    state = f"mode {cache['mode']}, {cache['entries']} entries, {cache['bytes']} bytes; {by_target(cache['kernels'])}"
    return Line("cache", f"{cache['folder']}: {state if cache['mode'] else 'the first kernel makes it'}")
