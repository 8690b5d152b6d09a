"""The main reason for a call's time besides the work itself, in one clause."""

from __future__ import annotations

from collections.abc import Iterator

from matmill.analysis.candidates import copied, slices
from matmill.analysis.explain import Explanation
from matmill.analysis.runner_ups import BOUNDS, Reason
from matmill.kernels.shared.tiled import VECTOR_BYTES
from matmill.problem import Gemm

#: A cost below this share of the time is not a reason.
_TELLS = 0.05
#: A prediction is close to the GPU's best if the floor is at least this share of it.
_CLOSE = 0.85
#: FMAs on padding and on idle SMs are not mentioned below this share of all.
_WASTED = 0.1


def cause(explanation: Explanation) -> Reason:
    """Return the largest cost besides the work, in words that continue "because", and its seconds.

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
    """Yield all costs besides the work, with the seconds of each."""
    chosen, problem = explanation.chosen, explanation.problem
    yield Reason("the GPU waits for the host", chosen.call_seconds - chosen.seconds)
    if not isinstance(problem, Gemm):
        return
    yield Reason(f"{_unaligned(problem, copied(chosen.config))} repacked first", chosen.terms.get("repack", 0.0))
    yield Reason("a launch splits A and B into pieces first", chosen.terms.get("split", 0.0))
    count = slices(chosen.config)
    yield Reason(f"a second launch adds the sums of {count} slices of k", chosen.terms.get("second", 0.0))
    if chosen.waves is not None and chosen.waves.useful < 1 - _WASTED:
        idle = (1 - chosen.waves.useful) * chosen.terms.get("compute", 0.0)
        words = (
            f"SMs are idle or compute padding ({chosen.waves.words}; {chosen.waves.useful:.0%} of the FMAs are for D)"
        )
        yield Reason(words, idle)


def _unaligned(problem: Gemm, names: tuple[str, ...]) -> str:
    """Return the matrices that are repacked, and the reason."""
    aligns = {"A": problem.a_align, "B": problem.b_align}
    operands = " and ".join(names)
    if all(aligns[name] < VECTOR_BYTES for name in names):
        return f"rows of {operands} do not start on {VECTOR_BYTES} bytes and are"
    return f"{operands} {'is' if len(names) == 1 else 'are'} stored in no way that the kernel loads, and"
