"""Why a call takes as long as it does, in one clause: what costs most of all that is not the work itself."""

from __future__ import annotations

from collections.abc import Iterator

from matmill.analysis.candidates import copied, slices
from matmill.analysis.explain import Explanation
from matmill.analysis.runner_ups import BOUNDS, Reason
from matmill.kernels.shared.tiled import VECTOR_BYTES
from matmill.problem import Gemm

#: What costs less than this share of the time explains nothing.
_TELLS = 0.05
#: A prediction of which the floor is this share is close to all that the GPU can do.
_CLOSE = 0.85
#: Of FMAs on padding and on idle SMs, a smaller share than this of all is not told.
_WASTED = 0.1


def cause(explanation: Explanation) -> Reason:
    """Return what costs most, in words that continue "because", and the seconds that it costs.

    >>> from matmill.analysis.explain import explain
    >>> from matmill.arch import get
    >>> from matmill.dtypes import BF16
    >>> odd = Gemm(4096, 4096, 4096, BF16, a_strides=(4097, 1), a_align=2)
    >>> cause(explain(odd, get("h200"))).words
    'rows of A do not start on 16 bytes and are repacked first'
    """
    costly = [reason for reason in _causes(explanation) if reason.seconds >= _TELLS * explanation.chosen.call_seconds]
    bound = Reason(f"{BOUNDS[explanation.chosen.bound]} bounds it", explanation.chosen.seconds)
    if not costly or explanation.floor.seconds >= _CLOSE * explanation.chosen.call_seconds:
        return bound
    return max(costly, key=lambda reason: reason.seconds)


def _causes(explanation: Explanation) -> Iterator[Reason]:
    """Yield all that costs time beside the work, with the seconds that each costs."""
    chosen, problem = explanation.chosen, explanation.problem
    yield Reason("the GPU waits for the host", chosen.call_seconds - chosen.seconds)
    if not isinstance(problem, Gemm):
        return
    yield Reason(f"{_unaligned(problem, copied(chosen.config))} repacked first", chosen.terms.get("repack", 0.0))
    count = slices(chosen.config)
    yield Reason(f"a second launch adds the sums of {count} slices of k", chosen.terms.get("second", 0.0))
    if chosen.waves is not None and chosen.waves.useful < 1 - _WASTED:
        idle = (1 - chosen.waves.useful) * chosen.terms.get("compute", 0.0)
        words = (
            f"SMs are idle or compute padding ({chosen.waves.words}; {chosen.waves.useful:.0%} of the FMAs are for D)"
        )
        yield Reason(words, idle)


def _unaligned(problem: Gemm, names: tuple[str, ...]) -> str:
    """Return the matrices that are repacked, and what is wrong with them."""
    aligns = {"A": problem.a_align, "B": problem.b_align}
    operands = " and ".join(names)
    if all(aligns[name] < VECTOR_BYTES for name in names):
        return f"rows of {operands} do not start on {VECTOR_BYTES} bytes and are"
    return f"{operands} {'is' if len(names) == 1 else 'are'} stored in no way that the kernel loads, and"
