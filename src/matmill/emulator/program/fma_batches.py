"""Runs of independent float32 FMAs, which one NumPy call executes on many rows.

An 8x8 outer product in registers is 64 instructions that read 8 + 8 rows and update 64. One by one they take several
NumPy calls each on short rows; as a batch they take a few calls on long ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matmill.emulator.frontend.syntax import Immediate, PtxOperand, Register
from matmill.emulator.program.table import Action

_FEWEST = 4


@dataclass
class Batch:
    """FMAs ``sums[n] = left[n] * right[n] + addends[n]`` at ``first`` to ``first + len`` in their block.

    ``outer`` is None, or (a, b) if the products are all pairs of ``a`` and ``b``, ``b`` changing fastest.
    """

    first: int
    actions: list[Action]
    left: list[PtxOperand]
    right: list[PtxOperand]
    addends: list[PtxOperand]
    sums: list[PtxOperand]
    outer: tuple[list[PtxOperand], list[PtxOperand]] | None


def find_batches(actions: Sequence[Action]) -> list[Batch]:
    """Return the batches of a block: consecutive, unguarded FMAs, none of which reads another one's result."""
    batches: list[Batch] = []
    run: list[Action] = []
    written: set[Register] = set()

    def close(end: int) -> None:
        if len(run) >= _FEWEST:
            batches.append(_batch(end - len(run), list(run)))
        run.clear()
        written.clear()

    for index, action in enumerate(actions):
        operands = [v.operand for v in action.sources]
        result = action.results[0].operand if action.results else None
        fits = (
            action.group == "fma32"
            and action.instruction.guard is None
            and isinstance(result, Register)
            and isinstance(operands[2], Register)
            and not any(isinstance(o, Immediate) for o in operands)
        )
        if not fits or (run and (result in written or any(o in written for o in operands))):
            close(index)
        if fits and isinstance(result, Register):
            run.append(action)
            written.add(result)
    close(len(actions))
    return batches


def _batch(first: int, actions: list[Action]) -> Batch:
    left, right, addends = ([a.sources[n].operand for a in actions] for n in range(3))
    sums = [a.results[0].operand for a in actions]
    outer = _outer(left, right) or _outer(right, left)
    return Batch(first, actions, left, right, addends, sums, outer)


def _outer(slow: list[PtxOperand], fast: list[PtxOperand]) -> tuple[list[PtxOperand], list[PtxOperand]] | None:
    """Return the factors of an outer product whose pairs come in order, ``fast`` changing with each."""
    width = next((n for n, o in enumerate(slow) if o is not slow[0]), len(slow))
    if len(slow) % width or width == 1:
        return None
    columns = fast[:width]
    rows = slow[::width]
    for n, (s, f) in enumerate(zip(slow, fast, strict=True)):
        if s is not rows[n // width] or f is not columns[n % width]:
            return None
    return rows, columns
