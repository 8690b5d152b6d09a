"""What only measuring needs is in benchmarks/lab: the package never imports it and keeps no such modules itself."""

from __future__ import annotations

import ast
from pathlib import Path

import matmill

ROOT = Path(matmill.__file__).parent
MODULES = {
    ".".join(("matmill", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}


def _imports(path: Path) -> set[str]:
    """Return dotted names that a file imports, by statements or by name."""
    result: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            result |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            result |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in MODULES:
            result.add(node.value)
    return result


def test_the_package_never_imports_what_only_measuring_needs() -> None:
    assert not [name for name, path in MODULES.items() if any(one.split(".")[0] == "lab" for one in _imports(path))]


def test_the_command_line_needs_every_module_of_bench() -> None:
    left = [name for name in MODULES if name.startswith("matmill.cli")]
    reached = set(left)
    while left:
        imported = _imports(MODULES[left.pop()])
        packages = {name.rpartition(".")[0] for name in imported}  # Python imports these as well
        new = {name for name in imported | packages if name in MODULES} - reached
        reached |= new
        left += new
    assert {name for name in MODULES if name.startswith("matmill.bench.")} - reached == set()
