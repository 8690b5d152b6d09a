"""What qualifiers of accesses and fences say about order, in all the forms that compilers write."""

from __future__ import annotations

import pytest

from matmill.emulator.frontend.parse import parse
from matmill.emulator.frontend.syntax import Instruction
from matmill.emulator.program.ordering import Ordering, access_ordering, fence_ordering, orders_memory
from matmill.emulator.program.translate import translate
from matmill.errors import EmulationError
from support.ptx_tools import compile_ptx, entry

REGISTERS = ".reg .b32 r; .reg .b64 a; mov.u64 a, 0;"


def instruction(text: str) -> Instruction:
    """Return the one instruction of interest in a program that the emulator takes."""
    name = text.split(".", maxsplit=1)[0]
    program = translate(parse(entry(f"{REGISTERS} {text}")), "k")
    return next(i for i in program.instructions if i.name == name)


ACCESSES = {
    "ld.global.u32 r, [a];": None,
    "ld.weak.global.u32 r, [a];": None,
    "ld.global.cg.u32 r, [a];": None,
    "ld.relaxed.gpu.global.u32 r, [a];": Ordering(),
    "ld.relaxed.cta.u32 r, [a];": Ordering(wide=False),
    "ld.acquire.sys.global.u32 r, [a];": Ordering(acquire=True),
    "ld.acquire.cluster.global.u32 r, [a];": Ordering(acquire=True, wide=False, cluster=True),
    "ld.volatile.global.u32 r, [a];": Ordering(volatile=True),
    "ld.mmio.relaxed.sys.global.u32 r, [a];": Ordering(),
    "st.global.u32 [a], r;": None,
    "st.release.gpu.global.u32 [a], r;": Ordering(release=True),
    "st.relaxed.gpu.u32 [a], r;": Ordering(),
    "st.volatile.global.u32 [a], r;": Ordering(volatile=True),
    "atom.global.inc.u32 r, [a], 3;": Ordering(),
    "atom.global.cta.add.u32 r, [a], 3;": Ordering(wide=False),
    "atom.acq_rel.gpu.global.inc.u32 r, [a], 3;": Ordering(acquire=True, release=True),
    "atom.add.acquire.gpu.u32 r, [a], 3;": Ordering(acquire=True),
    "atom.release.sys.global.cas.b32 r, [a], 3, 4;": Ordering(release=True),
    "red.release.gpu.global.add.u32 [a], r;": Ordering(release=True),
    "red.global.add.u32 [a], r;": Ordering(),
}
FENCES = {
    "membar.gl;": Ordering(acquire=True, release=True, sc=True),
    "membar.sys;": Ordering(acquire=True, release=True, sc=True),
    "membar.cta;": Ordering(acquire=True, release=True, wide=False, sc=True),
    "fence.sc.gpu;": Ordering(acquire=True, release=True, sc=True),
    "fence.acq_rel.gpu;": Ordering(acquire=True, release=True),
    "fence.gpu;": Ordering(acquire=True, release=True),
    "fence.acq_rel.cluster;": Ordering(acquire=True, release=True, wide=False, cluster=True),
    "fence.acquire.sys;": Ordering(acquire=True),
    "fence.release.gpu;": Ordering(release=True),
    "fence.proxy.async;": None,
    "fence.mbarrier_init.release.cluster;": None,
    "membar.proxy.alias;": None,
}


@pytest.mark.parametrize("text", ACCESSES)
def test_accesses_are_as_strong_as_they_say(text: str) -> None:
    ordering = ACCESSES[text]
    assert access_ordering(instruction(text)) == ordering
    orders = ordering is not None and (ordering.acquire or ordering.release)
    assert orders_memory(instruction(text)) == orders
    assert translate(parse(entry(f"{REGISTERS} {text}")), "k").has_releases == orders


@pytest.mark.parametrize("text", FENCES)
def test_fences_order_what_they_say(text: str) -> None:
    assert fence_ordering(instruction(text)) == FENCES[text]
    assert orders_memory(instruction(text)) == (FENCES[text] is not None)


@pytest.mark.parametrize("text", ["fence.sc;", "membar;", "fence.strict.gpu;", "membar.gpu;", "membar.gl.cta;"])
def test_unknown_fences_are_refused(text: str) -> None:
    with pytest.raises(EmulationError):
        instruction(text)


def test_what_cuda_calls_a_fence_or_an_atomic_is_known() -> None:
    source = """extern "C" __global__ void k(unsigned* c) {
      __threadfence(); __threadfence_block(); __threadfence_system();
      atomicAdd(c, atomicInc(c + 1, 5u)); atomicExch(c + 2, atomicCAS(c + 3, 1u, 2u)); atomicAdd_block(c + 4, 1u); }"""
    program = translate(parse(compile_ptx(source)), "k")
    fences = [fence_ordering(i) for i in program.instructions if i.name in {"membar", "fence"}]
    wide = Ordering(acquire=True, release=True, sc=True)
    assert fences == [wide, Ordering(acquire=True, release=True, wide=False, sc=True), wide]
    atomics = [access_ordering(i) for i in program.instructions if i.name in {"atom", "red"}]
    assert atomics.count(Ordering()) == 4
    assert atomics.count(Ordering(wide=False)) == 1
