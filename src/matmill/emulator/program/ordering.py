"""The memory order of an instruction: whether it is strong, and whether it releases or acquires.

PTX ISA, "Memory Consistency Model". A scope is *wide* if it reaches beyond the thread's cluster. In a launch without
clusters each block is its own cluster, and ``.cluster`` is the same as ``.cta``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from matmill.emulator.frontend.syntax import Instruction, PtxOperand
from matmill.emulator.program.table import Modifiers

_NARROW = ("cta", "cluster")
_SCOPES = (*_NARROW, "gpu", "sys")
_ACQUIRING = ("acquire", "acq_rel", "sc")
_RELEASING = ("release", "acq_rel", "sc")
# Fences between proxies or about mbarriers: they order no two accesses of the emulator.
_APART = ("proxy", "mbarrier_init", "sync_restrict")


@dataclass(frozen=True, slots=True)
class Ordering:
    """The qualifiers of a strong access or a fence; with neither ``acquire`` nor ``release`` it is ``.relaxed``.

    ``cluster`` says that the scope is ``.cluster``.
    """

    acquire: bool = False
    release: bool = False
    wide: bool = True
    sc: bool = False
    volatile: bool = False
    cluster: bool = False


def access_ordering(i: Instruction) -> Ordering | None:
    """Return the order of an access, or None for a weak one.

    Atomics are relaxed with scope ``.gpu`` by default.
    """
    stated = {"relaxed", "acquire", "release", "acq_rel", "volatile", "mmio"}.intersection(i.modifiers)
    if not stated and i.name not in {"atom", "red"}:
        return None
    return Ordering(
        acquire=not stated.isdisjoint(_ACQUIRING),
        release=not stated.isdisjoint(_RELEASING),
        wide=not any(scope in i.modifiers for scope in _NARROW),
        volatile="volatile" in stated,
        cluster="cluster" in i.modifiers,
    )


def compared_loads(instructions: Iterable[Instruction]) -> frozenset[Instruction]:
    """Return the plain loads whose value a compare-and-swap compares, directly or after moves.

    They begin the loops around ``atomicCAS`` that the CUDA C++ programming guide shows ("Atomic Functions"). The
    compare-and-swap tests whatever value such a load returns, so that they order memory as relaxed loads do.
    """
    compared: set[PtxOperand] = set()
    sources: dict[PtxOperand, list[Instruction]] = {}
    for i in instructions:
        if i.name == "atom" and "cas" in i.modifiers:
            compared.add(i.operands[2])
        elif i.name in {"ld", "mov"}:
            sources.setdefault(i.operands[0], []).append(i)
    loads: set[Instruction] = set()
    left = list(compared)
    while left:
        for i in sources.get(left.pop(), ()):
            if i.name == "ld":
                loads.add(i)
            elif i.operands[1] not in compared:
                compared.add(i.operands[1])
                left.append(i.operands[1])
    return frozenset(loads)


def fence_ordering(i: Instruction) -> Ordering | None:
    """Return the order of a ``fence`` or ``membar`` (which is a fence.sc), or None if it orders nothing here."""
    if any(m.startswith(_APART) for m in i.modifiers):
        return None
    m = Modifiers(i)
    if i.name == "membar":
        level = m.need("cta", "gl", "sys")
        m.done()
        return Ordering(acquire=True, release=True, wide=level != "cta", sc=True)
    meaning = m.pick(("sc", "acq_rel", "acquire", "release"), "acq_rel")
    scope = m.need(*_SCOPES)
    m.done()
    return Ordering(
        acquire=meaning in _ACQUIRING,
        release=meaning in _RELEASING,
        wide=scope not in _NARROW,
        sc=meaning == "sc",
        cluster=scope == "cluster",
    )


def ordering_of(i: Instruction) -> Ordering | None:
    """Return the order of a fence or an access; None for a weak access and any other instruction."""
    if i.name in {"fence", "membar"}:
        return fence_ordering(i)
    return access_ordering(i) if i.name in {"ld", "st", "atom", "red"} else None


def orders_memory(i: Instruction) -> bool:
    """Tell whether an instruction releases or acquires anything, or is a fence that does."""
    ordering = ordering_of(i)
    return ordering is not None and (ordering.acquire or ordering.release)
