"""A loaded, reusable pipeline for one problem: chosen, compiled and prepared once, then only launched.

Plans are remembered by what they depend on: shapes, strides, element type, alignment and device; never by address.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from matmill.arch import Arch
from matmill.arrays import Operand
from matmill.choose import Choice, choose
from matmill.compile import Binary, compile_source
from matmill.execute import Pointer
from matmill.gpu import GPU, Prepared, bare
from matmill.kernel import GemmOperands
from matmill.layout import Offsets, Stage, lower
from matmill.problem import Gemm
from matmill.source import generate

_NOWHERE = GemmOperands(Pointer("A", 0), Pointer("B", 0), Pointer("C", 0), Pointer("D", 0))
#: Plans remembered; a program with more layouts than this pays for making plans again, about 100 µs each.
_MOST_PLANS = 1024

Args: TypeAlias = "list[int | np.generic]"


@dataclass(frozen=True)
class Ready:
    """One stage of a product with the kernel chosen and compiled for it."""

    stage: Stage
    choice: Choice
    binary: Binary

    @property
    def problem(self) -> Gemm:
        """The stage's problem."""
        return self.stage.problem


def prepare(stages: tuple[Stage, ...], arch: Arch) -> tuple[Ready, ...]:
    """Choice and binary for each stage: the pure middle of the flow, which needs no GPU."""
    ready = []
    for stage in stages:
        choice = choose(stage.problem, arch)
        source = generate(choice.kernel, stage.problem.dtype)
        ready.append(Ready(stage, choice, compile_source(source, arch.target)))
    return tuple(ready)


def operands_at(
    addresses: tuple[int, int, int, int], offsets: Offsets, alpha: float = 1.0, beta: float = 0.0
) -> GemmOperands:
    """The kernel's operands at ``offsets`` bytes from the four matrices' addresses."""
    pairs = zip("ABCD", addresses, offsets, strict=True)
    a, b, c, d = (Pointer(name, base + step) for name, base, step in pairs)
    return GemmOperands(a, b, c, d, alpha, beta)


@dataclass
class _Step:
    """One kernel of a plan. ``memo`` holds the arguments of the latest alpha and beta; addresses are filled in."""

    prepared: Prepared
    ready: Ready
    slots: tuple[int, int, int, int]
    memo: tuple[float, float, Args] = field(default=(1.0, 0.0, []))

    def arguments(self, alpha: float, beta: float) -> Args:
        known_alpha, known_beta, args = self.memo
        if not args or alpha != known_alpha or beta != known_beta:
            operands = GemmOperands(_NOWHERE.a, _NOWHERE.b, _NOWHERE.c, _NOWHERE.d, alpha, beta)
            args = bare(self.ready.choice.kernel.arguments(self.ready.problem, operands))
            self.memo = (alpha, beta, args)  # one assignment, so that two threads cannot mix theirs
        return args.copy()


class Plan:
    """What is left of a product once everything that does not depend on addresses is done."""

    def __init__(self, gpu: GPU, ready: tuple[Ready, ...]) -> None:
        self.ready = ready
        self._steps = tuple(_step(gpu, one) for one in ready)

    def run(self, addresses: tuple[int, int, int, int], alpha: float, beta: float, stream: int) -> None:
        """Enqueues the product on a stream and returns without waiting. Addresses are those of A, B, C and D."""
        a, b, c, d = addresses
        for step in self._steps:
            slot_a, slot_b, slot_c, slot_d = step.slots
            for offset_a, offset_b, offset_c, offset_d in step.ready.stage.offsets:
                args = step.arguments(alpha, beta)
                args[slot_a] = a + offset_a
                args[slot_b] = b + offset_b
                args[slot_c] = c + offset_c
                args[slot_d] = d + offset_d
                step.prepared(args, stream)


def _step(gpu: GPU, ready: Ready) -> _Step:
    launch = ready.choice.kernel.launch(ready.problem, _NOWHERE)
    found = {arg.name: place for place, arg in enumerate(launch.args) if isinstance(arg, Pointer)}
    slots = (found["A"], found["B"], found["C"], found["D"])
    return _Step(gpu.prepare(ready.binary, launch), ready, slots)


_plans: dict[tuple[object, ...], Plan] = {}


def recall(gpu: GPU, a: Operand, b: Operand, c: Operand | None, d: Operand, *, skip_product: bool) -> Plan:
    """The plan for operands that lie on ``gpu``, made on first meeting their layout."""
    key = (
        gpu.index,
        a.dtype.name,
        skip_product,
        (a.shape, a.strides, a.address & 15),
        (b.shape, b.strides, b.address & 15),
        (d.shape, d.strides, d.address & 15),
        None if c is None else (c.shape, c.strides),
    )
    plan = _plans.get(key)
    if plan is None:
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        stages = lower(a, b, c, d, skip_product=skip_product)
        plan = _plans[key] = Plan(gpu, prepare(stages, gpu.arch))
    return plan
