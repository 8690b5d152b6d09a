"""Who may import whom, read from the source; and what importing matmill does not load."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import matmill

ROOT = Path(matmill.__file__).parent
MODULES = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sorted(ROOT.rglob("*.py"))}

#: The layers of docs/architecture.md, low to high. A module may import its own layer and those below it.
LAYERS = (
    ("errors", "dtypes", "settings", "driver", "memo", "precision", "reference"),
    ("arch", "arrays", "problem", "config", "decisions"),
    ("launch", "tensor_map", "textures", "parameters", "kernel", "lowering", "covering", "invariant"),
    ("kernels", "include"),
    ("registry",),
    ("choose", "jit", "runtime", "emulator", "analysis", "cuda_source"),
    ("plan", "streaming", "testing", "page"),
    ("dispatch",),
    ("ops",),
    ("tuning", "contraction"),
    ("torch", "dask", "jax"),
    ("bench",),
    ("ladders", "learn"),
    ("cli",),
)
#: Above the order: the package and its entry points.
APART = {"__init__", "__main__", "runtime.__init__"}
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}

#: Modules that may import cuda.*: the compiler and the executor.
CUDA = {"jit.nvrtc", "runtime.gpu"}
#: Array libraries that no module imports by a statement but the package of the same name, which is for their users
#: alone; the baselines load theirs by name when asked to.
LIBRARIES = {"torch", "cupy", "jax", "dask"}


@cache
def _imports(path: Path) -> frozenset[str]:
    """Read the dotted names of all that a file imports, at any depth."""
    result = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            result |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            result |= {f"{module}.{alias.name}" for alias in node.names}
    return frozenset(result)


def _part(dotted: str) -> str:
    """Return the part of matmill that a dotted name means."""
    return _own(dotted.partition(".")[2] or "__init__")


def _own(module: str) -> str:
    """Return the room or file of the root that a module belongs to."""
    return module.split(".", maxsplit=1)[0]


def _pairs() -> Iterator[tuple[str, str]]:
    """Yield each module with each name of matmill's that it imports."""
    for path, module in MODULES.items():
        for name in sorted(_imports(path)):
            if name.startswith("matmill."):
                yield module, name


def test_every_module_is_in_a_layer() -> None:
    assert {_own(module) for module in MODULES.values()} - APART - RANK.keys() == set(), "say here where it belongs"


def test_lower_never_imports_higher() -> None:
    for module, name in _pairs():
        own, part = _own(module), _part(name)
        # A bare name of the package, such as __version__, is the package's own.
        if own not in APART and ((ROOT / part).exists() or (ROOT / f"{part}.py").exists()):
            assert part in RANK, f"{module} imports {name}"
            assert RANK[part] <= RANK[own], f"{module} imports {name}, which is above it"
            assert part not in LIBRARIES or own == part, f"{module} imports {name}, which needs {part}"


def test_the_page_of_the_architecture_has_these_layers() -> None:
    page = (ROOT.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^    errors, .*?\n\n", page, re.MULTILINE | re.DOTALL)
    assert tuple(tuple(re.findall(r"\w+", layer)) for layer in block.split("<")) == LAYERS


def test_reference_knows_only_dtypes() -> None:
    names = {name for name in _imports(ROOT / "reference.py") if name.startswith("matmill")}
    assert {_part(name) for name in names} == {"dtypes"}


def test_results_are_never_checked_by_what_made_them() -> None:
    users = {_own(module) for path, module in MODULES.items() if any("matmill.reference" in n for n in _imports(path))}
    assert users <= {"bench", "ladders", "cli"}


#: The rooms of bench, low to high. A module may import its own room and those below it.
BENCH_ROOMS = (
    ("units", "progress", "environment"),
    ("timing", "problems"),
    ("libraries", "probe"),
    ("plots",),
)
BENCH_RANK = {name: rank for rank, row in enumerate(BENCH_ROOMS) for name in row}


def test_rooms_of_bench_import_only_what_is_below_them() -> None:
    for module, name in _pairs():
        pieces = module.split(".")
        if pieces[0] == "bench" and len(pieces) > 2 and name.startswith("matmill.bench."):
            own, room = pieces[1], name.split(".")[2]
            assert room == own or BENCH_RANK[room] < BENCH_RANK[own], f"{module} imports {name}"


def test_rungs_know_no_runner() -> None:
    # A kernel of a ladder is launched by anybody; what runs, measures and compares rungs is above them.
    above = ("matmill.bench", "matmill.ladders.runner", "matmill.ladders.registry")
    for module, name in _pairs():
        room, _, file = module.rpartition(".")
        if module.startswith("ladders.") and room != "ladders.runner" and file not in {"subject", "registry"}:
            assert not name.startswith(above), f"{module} imports {name}"


def test_cuda_and_array_libraries_stay_where_they_belong() -> None:
    for path, module in MODULES.items():
        tops = {name.split(".")[0] for name in _imports(path)}
        assert "cuda" not in tops or module in CUDA, f"{module} imports cuda"
        result = tops & LIBRARIES - {_own(module)}
        assert not result, f"{module} imports {result}"


#: The folders of kernels/ that others may use, low to high; the kernels themselves know nothing of each other.
COMMON = ("shared", "splitk", "repack", "pieces")
#: Users of another kernel's pipeline: pieces of float32 elements that do not suffice are split in registers by warps of
#: mma.sync, bytes are multiplied there two for one element of 16 bits, groups have the tiles of single products, and
#: complex elements go through the FMA pipeline of real ones.
BUILT_ON = {
    ("pieces", "hgemm"),
    ("igemm", "hgemm"),
    ("complex_gemm", "gemm"),
    ("grouped", "gemm"),
    ("grouped", "hgemm"),
    ("grouped", "wgmma"),
}


def _knows(folder: str, other: str) -> bool:
    """Tell whether files of a folder of kernels/ may use those of another one."""
    below = COMMON.index(folder) if folder in COMMON else len(COMMON)
    return other == folder or other in COMMON[:below] or (folder, other) in BUILT_ON


def test_kernel_folders_know_their_own_files_and_the_common_ones() -> None:
    for module, name in _pairs():
        pieces = module.split(".")
        if pieces[0] == "kernels" and len(pieces) > 1:
            assert not name.startswith("matmill.ladders"), f"{module} imports {name}"
            assert not name.startswith("matmill.kernels.") or _knows(pieces[1], name.split(".")[2]), f"{module}: {name}"
    for path in sorted((ROOT / "kernels").rglob("*.cuh")):
        folder = path.relative_to(ROOT / "kernels").parts[0]
        for other in re.findall(r'#include "kernels/(\w+)/', path.read_text(encoding="utf-8")):
            assert _knows(folder, other), f"{path} includes {other}"


def test_analysis_knows_no_kernel() -> None:
    for module, name in _pairs():
        if module.startswith("analysis.") and name.startswith("matmill.kernels."):
            assert name.split(".")[2] in COMMON, f"{module} imports {name}"


def test_cost_models_know_no_kernel() -> None:
    # Tiles are below the model; the description of the kernel, which the folder itself holds, is above it.
    for module, name in _pairs():
        if module.startswith("kernels.") and module.endswith(".cost") and module.split(".")[1] not in COMMON:
            package, _, _ = name.rpartition(".")
            own = package == f"matmill.{module.removesuffix('.cost')}"
            assert not own or f"{name.removeprefix('matmill.')}" in MODULES.values(), f"{module} imports {name}"


def test_the_emulator_knows_no_kernel() -> None:
    known = {"emulator", "errors", "launch", "tensor_map", "textures", "dtypes"}
    for module, name in _pairs():
        assert _own(module) != "emulator" or _part(name) in known, f"{module} imports {name}"


def test_headers_never_include_kernels() -> None:
    headers = sorted((ROOT / "include").rglob("*.cuh"))
    assert headers
    for header in headers:
        for line in header.read_text(encoding="utf-8").splitlines():
            if line.lstrip().startswith("#include"):
                assert '"matmill/' in line or "<" in line, f"{header} includes what is not below it"


_PROBE = """
import sys
{body}
heavy = sorted(m for m in sys.modules if m.split(".")[0] in {{"cuda", "torch", "cupy", "jax", "dask", "numba"}})
print(",".join(heavy), "numpy" in sys.modules)
"""


def _loaded(body: str) -> list[str]:
    command = [sys.executable, "-c", _PROBE.format(body=body)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT.parent)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return done.stdout.split()


def test_importing_matmill_loads_next_to_nothing() -> None:
    assert _loaded("import matmill") == ["False"]


def test_a_product_on_the_cpu_loads_no_cuda() -> None:
    body = "import numpy, matmill; matmill.matmul(numpy.eye(2), numpy.eye(2), executor='cpu')"
    assert _loaded(body) == ["True"]


def test_public_names_are_there() -> None:
    for name in matmill.__all__:
        assert getattr(matmill, name) is not None
    assert set(matmill.__all__) == set(dir(matmill))
    with pytest.raises(AttributeError, match="no attribute 'mat_mul'"):
        _ = matmill.mat_mul


#: The rooms of the emulator, low to high; those of one row know nothing of each other. A file may import files of its
#: own room and of rooms in lower rows.
EMULATOR_ROOMS = (
    ("arith", "frontend"),
    ("memory",),
    ("report",),
    ("program",),
    ("races",),
    ("engine",),
    ("families",),
    ("run",),
)
EMULATOR_RANK = {room: rank for rank, rooms in enumerate(EMULATOR_ROOMS) for room in rooms}


def _emulator_imports() -> dict[str, set[str]]:
    """Return the emulator's files below its face, each with those that it imports."""
    prefix = "matmill.emulator."
    files = {
        MODULES[path].removeprefix("emulator."): path
        for path in MODULES
        if _own(MODULES[path]) == "emulator" and path.name != "__init__.py"
    }
    result = {}
    for file, path in files.items():
        names = {name.removeprefix(prefix) for name in _imports(path) if name.startswith(prefix)}
        # ``from matmill.emulator.arith import exact`` names a file, ``from matmill.emulator.arith.row import Row`` a
        # name inside one.
        result[file] = {name if name in files else name.rpartition(".")[0] for name in names}
    return result


def test_rooms_of_the_emulator_import_lower_rooms_alone() -> None:
    for file, imported in _emulator_imports().items():
        room = file.split(".")[0]
        assert room in EMULATOR_RANK, f"emulator.{file} is in no room: say here where it belongs"
        for other in imported:
            below = other.split(".")[0]
            assert below in EMULATOR_RANK, f"emulator.{file} imports emulator.{other}"
            assert room == below or EMULATOR_RANK[below] < EMULATOR_RANK[room], f"emulator.{file} imports {other}"


#: The rooms inside of two of these, low to high; a file beside them is a room of its own.
INNER_ROOMS = {
    "engine": ("lanes", "async_units", "state", "bind", "schedule"),
    "races": ("order", "shadow", "detector", "async_units"),
}


@pytest.mark.parametrize("room", INNER_ROOMS)
def test_inner_rooms_import_lower_ones_alone(room: str) -> None:
    rank = {name: number for number, name in enumerate(INNER_ROOMS[room])}
    for file, imported in _emulator_imports().items():
        for other in imported:
            if file.startswith(f"{room}.") and other.startswith(f"{room}."):
                own, below = file.split(".")[1], other.split(".")[1]
                assert rank[below] <= rank[own], f"emulator.{file} imports emulator.{other}"


def test_no_files_import_each_other_in_a_circle() -> None:
    names = {module.removesuffix(".__init__") for module in MODULES.values()}
    graph: dict[str, set[str]] = {name: set() for name in names}
    for module, name in _pairs():
        file, own = name.removeprefix("matmill."), module.removesuffix(".__init__")
        while file and file not in names:  # a name inside of a file
            file = file.rpartition(".")[0]
        graph[own] |= {file} - {"", own}
    # Raises CycleError, which names the files.
    TopologicalSorter(graph).prepare()
