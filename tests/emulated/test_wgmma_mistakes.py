"""Mistakes planted in the warp-specialised kernel: the emulator reports each of them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from matmill.emulator import Hazard, KernelFault
from matmill.jit.source import generate
from matmill.kernels.wgmma.tiles import Shape
from support.strided import COLUMN, without
from support.wgmma_cases import Case

#: Two tiles for one block, and k-steps that go round two stages more than once.
_CASE = Case(
    "two tiles", Shape(64, 64, 1), (72, 64, 200), sms=1, stages=2, given={"b": COLUMN},
)  # fmt: skip
_LOOP, _PRODUCER = "kernels/wgmma/mainloop.cuh", "kernels/wgmma/producer.cuh"
_EPILOGUE = "kernels/wgmma/epilogue.cuh"
_ARRIVED = "    arrived(shared.stages + slot.stage * Tile::STAGE_BYTES, step);\n    ptx::wgmma_fence();\n"
_FULL = f"    ptx::mbarrier_wait(shared.full + 8 * slot.stage, slot.parity);\n{_ARRIVED}"
_STEP = "    operands.multiply(sums, others, step > 0);\n"
_NOTHING_IN_FLIGHT = "  issued();\n  ptx::wgmma_wait<0>();\n"
_EMPTY = "    ptx::mbarrier_wait(shared.empty + 8 * slot.stage, slot.parity ^ 1);\n"
_RELEASE = "  release(before);\n}\n"
_FENCE = "      if (D_TMA) ptx::fence_proxy_async_shared();\n"
_READ = "      if (D_TMA && first_thread) ptx::bulk_wait_read<0>();\n"
_BARRIER = "      ptx::barrier_sync<128>(barrier);\n"


@dataclass(frozen=True)
class Mistake:
    """A change of the kernel, and the kinds of hazards of which the emulator has to report one."""

    name: str
    change: tuple[str, str, str]
    kinds: tuple[str, ...]

    def __str__(self) -> str:
        return self.name


MISTAKES = (
    Mistake("no wait for a full stage", (_LOOP, _FULL + _STEP, _ARRIVED + _STEP), ("race",)),
    Mistake("no wait for an empty stage", (_PRODUCER, _EMPTY, ""), ("race",)),
    Mistake("a stage released a step early", (_LOOP, "    ptx::wgmma_wait<1>();\n", ""), ("race",)),
    Mistake("the last stage never released", (_LOOP, f"  pin<Tile>(sums);\n{_RELEASE}", "  pin<Tile>(sums);\n}\n"),
            ("deadlock",)),
    Mistake("sums read before the wait", (_LOOP, _NOTHING_IN_FLIGHT, "  issued();\n"), ("register-in-flight",)),
    Mistake("no wgmma.fence", (_LOOP, f"    ptx::wgmma_fence();\n{_STEP}", _STEP), ("missing-wgmma-fence",)),
    Mistake("no proxy fence before a TMA store", (_EPILOGUE, _FENCE, ""), ("missing-proxy-fence",)),
    Mistake("no barrier before a TMA store", (_EPILOGUE, _FENCE + _BARRIER, _FENCE), ("race", "missing-proxy-fence")),
    Mistake("staging written while it is stored", (_EPILOGUE, _READ, ""), ("race",)),
)  # fmt: skip


def _found(change: tuple[str, str, str]) -> list[Hazard]:
    """Return what the emulator reports of a file with a text replaced, whether copies land early or late."""
    file, text, instead = change
    hazards: list[Hazard] = []
    for late in (False, True):
        trial = _CASE.product()
        try:
            kernel = _CASE.kernel(trial.problem)
            planted = without(generate(kernel, trial.dtype), file, text, instead=instead)
            reports = trial.emulated(kernel, late_copies=late, source=planted)
            hazards += [one for report in reports for one in report.hazards]
        except KernelFault as fault:
            hazards += [fault.hazard, *fault.earlier]
    return [one for one in hazards if one.severity != "note"]


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_a_planted_mistake_is_reported(mistake: Mistake) -> None:
    result = _found(mistake.change)
    assert {one.kind for one in result} & set(mistake.kinds), [str(one) for one in result] or "nothing is reported"


def test_without_a_mistake_nothing_is_reported() -> None:
    comment = (_LOOP, "// Descriptors of a warp group's operands in a stage.\n", "")
    assert _found(comment) == []
