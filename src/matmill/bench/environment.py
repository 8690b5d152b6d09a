"""The environment of a measurement, for every recorded JSON: GPU, driver, compiler, libraries, CPU and date."""

from __future__ import annotations

import datetime as dt
import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from matmill import __version__
from matmill.jit.nvrtc import compiler_version

#: Distributions whose versions matter to a result; CuPy is published under one name per CUDA version.
PACKAGES = (
    "numpy",
    "cuda-bindings",
    "nvidia-cuda-nvrtc",
    "rich",
    "matplotlib",
    "torch",
    "cupy-cuda13x",
    "cupy-cuda12x",
    "jax",
    "scikit-learn",
)
_PATIENCE = 15.0
_QUERY = "name,driver_version,memory.total,memory.free,power.limit,clocks.max.sm"


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, read from its metadata without importing it."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def cpu_name() -> str:
    """Return the CPU's model name from the system."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def nvidia_smi() -> list[dict[str, str]] | None:
    """Return one record per GPU in the output of nvidia-smi, or None if the tool is absent, fails or hangs.

    The tool runs as a child process with a time limit: a driver in trouble can block its callers for ever.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, f"--query-gpu={_QUERY}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=True)  # noqa: S603 — no shell
    except (OSError, subprocess.SubprocessError):
        return None
    keys = _QUERY.split(",")
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    return [dict(zip(keys, (part.strip() for part in line.split(",")), strict=False)) for line in lines]


def describe(*, gpu: bool) -> dict[str, object]:
    """Return the environment of a result. ``gpu`` says whether the run used one; the driver is queried only then."""
    major, minor = compiler_version()
    packages = {name: version for name in PACKAGES if (version := installed_version(name)) is not None}
    described: dict[str, object] = {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "matmill": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cpu_count": os.cpu_count(),
        "nvrtc": f"{major}.{minor}",
        "packages": packages,
    }
    if gpu:
        described["gpus"] = nvidia_smi()
    return described
