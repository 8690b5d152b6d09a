"""The hazards of a launch in several orders of its warps: what each order adds, and where results differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from matmill.emulator import Hazard, Order, Report
from matmill.emulator.program.translate import EmulatedProgram
from matmill.launch import Launch
from matmill.testing.arguments import Binder
from matmill.testing.report import locations_of, spelled

# Most orders of a launch, the warps up to which each of them runs ahead, and its most steps.
_MOST_ORDERS, _FEW, _MOST_STEPS = 100, 16, 40
# Instructions that complete asynchronously; without them late copies change nothing.
_ASYNCHRONOUS = ("cp", "wgmma")


class State:
    """The arrays of a launch, and what they had when this was made."""

    def __init__(self, binder: Binder, symbols: dict[str, NDArray[Any]]) -> None:
        named = [*binder.arrays, *symbols.items()]
        self.arrays = [(name, array) for name, array in named if array.flags.writeable]
        self.before = self.copies()

    def copies(self) -> list[NDArray[Any]]:
        """Return copies of the arrays as they are now."""
        return [array.copy(order="K") for _, array in self.arrays]

    def restore(self, values: Sequence[NDArray[Any]]) -> None:
        """Give the arrays the values of copies."""
        for (_, array), value in zip(self.arrays, values, strict=True):
            array[...] = value


class Findings:
    """The hazards of a launch in ``orders`` orders; those in ``witnesses`` need one that is not the usual."""

    def __init__(self, kernel: str, hazards: Sequence[Hazard], first: Order) -> None:
        self.kernel = kernel
        self.hazards = list(hazards)
        usual = first == Order()
        self.witnesses: dict[Hazard, Order] = {} if usual else dict.fromkeys(hazards, first)
        self.orders = 1

    def compare(self, orders: Iterable[Order], run: Callable[[Order], tuple[Report, bool]], state: State) -> None:
        """Run further orders on the arrays as they were before the launch, until one of them raises ``TimeoutError``.

        Afterwards the arrays have the results of the first order.
        """
        first = state.copies()
        for order in orders:
            state.restore(state.before)
            try:
                report, faulted = run(order)
            except TimeoutError:
                break
            self.orders += 1
            self._add(report.hazards, order)
            if not faulted and report.ok:
                self._add(self._differences(state.arrays, first, order), order)
        state.restore(first)

    def _add(self, hazards: Iterable[Hazard], order: Order) -> None:
        """Add the hazards at other lines than those that are there."""
        known = {(hazard.kind, locations_of(hazard)) for hazard in self.hazards}
        for hazard in hazards:
            if (hazard.kind, locations_of(hazard)) not in known:
                self.hazards.append(hazard)
                self.witnesses[hazard] = order

    def _differences(
        self, arrays: Sequence[tuple[str, NDArray[Any]]], first: Sequence[NDArray[Any]], order: Order
    ) -> Iterator[Hazard]:
        """Yield a hazard for the first array with other values than in the first order, beyond the rounding of sums."""
        for (name, two), one in zip(arrays, first, strict=True):
            differ = different(one, two, usual_tolerance(one.dtype))
            if differ.any():
                index = tuple(int(n) for n in np.argwhere(differ)[0])
                where = "".join(f"[{n}]" for n in index)
                late = order == Order(late_copies=True)
                how = "late copies" if late else f"the order of warps {order.seed or spelled(order)}"
                message = (
                    f"{self.kernel}: {int(differ.sum())} of {one.size} elements of {name} differ with {how}: "
                    f"{name}{where} is {two[index]}, and {one[index]} in the usual order"
                )
                yield Hazard("order", message, self.kernel, "")
                return


def usual_tolerance(dtype: np.dtype[Any]) -> float:
    """Return how far sums of floats may be apart that are rounded differently, because atomics add in any order.

    >>> usual_tolerance(np.dtype("f2")), usual_tolerance(np.dtype("i4"))
    (0.03125, 0.0)
    """
    if dtype.kind in "iub" or dtype.type is np.void:
        return 0.0
    finfo: Any = ml_dtypes.finfo  # of bfloat16 and the like, and of NumPy's own types
    return float(finfo(dtype).eps ** 0.5)


def different(one: NDArray[Any], two: NDArray[Any], tolerance: float) -> NDArray[np.bool_]:
    """Return where two results differ by more than ``tolerance``, relative to the largest element of the first."""
    if not tolerance:
        return np.asarray((one != two) & ~((one != one) & (two != two)))  # noqa: PLR0124 — NaN equals NaN here
    wide = np.float32 if one.dtype.kind == "V" else np.result_type(one.dtype, np.float32)
    first, second = one.astype(wide), two.astype(wide)
    most = tolerance * float(np.max(np.abs(first), where=np.isfinite(first), initial=0.0))
    return np.asarray(~np.isclose(second, first, rtol=tolerance, atol=most, equal_nan=True))


def has_copies(program: EmulatedProgram) -> bool:
    """Tell whether late copies are another order."""
    return any(i.name in _ASYNCHRONOUS for i in program.instructions)


def seen(program: EmulatedProgram, orders: Sequence[Order], *, first: int) -> list[Order]:
    """Return those of some orders that a kernel can tell from the ``first``, a seed, and lanes that meet late."""
    late = [Order(late_lanes=True)] if program.sees_convergence and not first else []
    return [*late, *(order for order in orders if order != Order(late_copies=True) or has_copies(program))]


def further_orders(program: EmulatedProgram, launch: Launch) -> Iterator[Order]:
    """Return further orders of a launch, at most 100, the shortest first.

    A warp or a block runs ahead, then one warp for a number of steps (preemption bounding: Musuvathi and Qadeer, PLDI
    2007), and drawn orders among them. Of a launch with few warps it is each of them, else the first and the last.
    """
    warps = -(-launch.threads_per_block // 32)
    blocks = int(np.prod(launch.grid))
    few = warps * blocks <= _FEW
    some = range(blocks)[::-1] if few else sorted({blocks - 1, 0}, reverse=True)
    roles = [(b, w) for b in some for w in (range(warps)[::-1] if few else sorted({warps - 1, 0}))]
    alone = [Order(ahead=role) for role in roles] if warps > 1 else []
    plain: list[Order] = [Order(late_lanes=True)] if program.sees_convergence else []
    plain += [Order(late_copies=True)] if has_copies(program) else []
    whole = [Order(ahead=(b, -1)) for b in some] if blocks > 1 else []
    preempted = [Order(ahead=role, steps=n) for n in range(1, _MOST_STEPS) for role in roles]
    seeds = [Order(seed, late_lanes=bool(seed % 2)) for seed in range(1, _MOST_ORDERS)]
    if blocks * warps == 1:
        return iter(plain)
    mixed = (each for pair in zip_longest(preempted if few else (), seeds) for each in pair if each is not None)
    return iter([*plain, *whole, seeds[0], *alone, *mixed][:_MOST_ORDERS])
