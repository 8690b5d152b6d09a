"""How exactly a run executed its instructions: as hardware was recorded to, by the documents, or approximately."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from matmill.emulator.frontend.syntax import Instruction

# Computed more precisely than a GPU's, whose results the PTX ISA bounds and does not define.
_APPROXIMATE = frozenset({"approx", "full"})
# No GPU was asked about these.
_DOCUMENTED = frozenset({"tex", "tld4", "suld", "sust", "sured", "txq", "suq", "stmatrix", "tensormap", "vset", "vadd"})
_RECORDED_MMA, _MOST_NAMED = ("sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100"), 3


def fidelity(executed: Iterable[tuple[Instruction, int]], target: str) -> str:
    """Describe the instructions that warps executed, each with how often."""
    counts: dict[str, Counter[str]] = {"": Counter(), "documents": Counter(), "approximately": Counter()}
    for i, count in executed:
        unasked = i.name in _DOCUMENTED or (i.name == "mma" and not target.startswith(_RECORDED_MMA))
        how = "approximately" if not _APPROXIMATE.isdisjoint(i.modifiers) else "documents" if unasked else ""
        counts[how][i.opcode if how == "approximately" else i.name] += count
    parts = [f"{counts[''].total():,} warp instructions as hardware was recorded to execute them"]
    for how, text in (("documents", "by the documents alone"), ("approximately", "more precisely than a GPU")):
        names = [name for name, count in counts[how].most_common() if count]
        if names:
            shown = ", ".join([*names[:_MOST_NAMED], *["…"][: len(names) > _MOST_NAMED]])
            parts.append(f"{counts[how].total():,} {text} ({shown})")
    return "fidelity: " + ", ".join(parts)
