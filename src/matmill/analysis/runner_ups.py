"""The configurations next to the chosen one, and the parts on which each of them spends more time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matmill.analysis.candidates import Candidate, copied, exchanged, slices, tile
from matmill.config import Config

#: The terms that bound a prediction, in words, by their names in the cost models.
BOUNDS = {
    "multiply": "the rate at which tensor cores multiply",
    "compute": "the rate at which FMA units multiply",
    "arithmetic": "the rate of multiplying",
    "shared": "shared memory, which delivers operands",
    "operands": "shared memory and L1, which deliver operands",
    "l2": "L2, which delivers tiles",
    "lines": "cache lines that loads look up",
    "issue": "issuing instructions",
    "latency": "the latency of the copies in flight",
    "copies": "threads that copy rows which start anywhere",
    "memory": "the bandwidth of memory",
    "epilogue": "epilogues",
    "repack": "repacking",
    "second": "the launch that adds partial sums",
    "blocks": "blocks that wait for their loads",
    "overhead": "the launch, the first loads and the reduction",
}
#: Reasons why k-steps of a configuration take longer, by the unit that takes them.
_SLOWER = {
    "multiply": "FMAs on padding",
    "shared": "more bytes through shared memory for each FMA",
    "l2": "more bytes from L2 for each FMA",
    "lines": "more cache lines for each FMA",
    "issue": "more instructions for each FMA",
    "latency": "fewer copies in flight",
    "copies": "more vectors copied for each FMA",
}
#: The advantage that an instruction lacks compared with the chosen kernel's.
_SLOWER_INSTRUCTION = {
    ("mma.sync", "wgmma"): "mma.sync does not reach the rate of Hopper's tensor cores, which wgmma reaches"
}
#: Terms that overlap: the shorter ones of these hardly matter.
_OVERLAPPED = ("compute", "main_loop", "memory", "issue", "arithmetic", "operands", "blocks")
_SHOWS = 0.7
#: A reason is omitted below this share of the difference, and predictions within this are equal.
_MINOR, _EQUAL = 0.05, 1e-3
#: Differences in useful work, and in cycles of k-steps, below this share are not mentioned.
_WASTED = 0.01
#: The most runner-ups of the chosen kernel that differ in their tile.
_TILES = 3


@dataclass(frozen=True)
class Reason:
    """A reason why a configuration is slower than the chosen one, and its seconds."""

    words: str
    seconds: float


@dataclass(frozen=True)
class RunnerUp:
    """A configuration that was not chosen, with its reasons, the most expensive first."""

    candidate: Candidate
    reasons: tuple[Reason, ...]


def runner_ups(legal: Sequence[Candidate], chosen: Candidate) -> tuple[RunnerUp, ...]:
    """Return the best of each other kernel, and the chosen kernel's best that differ in one respect, fastest first."""
    return tuple(RunnerUp(one, _reasons(one, chosen)) for one in _next_best(legal, chosen))


def _next_best(legal: Sequence[Candidate], chosen: Candidate) -> list[Candidate]:
    ranked: list[Candidate] = []

    def best(fits: Callable[[Candidate], bool]) -> None:
        ranked.extend(one for one in [next((one for one in own if fits(one)), None)] if one and one not in ranked)

    by_time = sorted(legal, key=lambda one: one.seconds)
    own = [one for one in by_time if one.kernel.entry == chosen.kernel.entry and one is not chosen]
    taken = {tile(chosen)}
    for one in own:
        if tile(one) not in taken and len(ranked) < _TILES:
            ranked.append(one)
            taken.add(tile(one))
    same = tile(chosen)
    best(lambda one: tile(one) == same and exchanged(one) != exchanged(chosen))
    best(lambda one: (slices(one.config) > 1) != (slices(chosen.config) > 1))
    best(lambda one: copied(one.config) != copied(chosen.config))
    others: dict[str, Candidate] = {}
    for one in by_time:
        if one.kernel.entry != chosen.kernel.entry:
            others.setdefault(one.kernel.entry, one)
    return sorted([*ranked, *others.values()], key=lambda one: one.seconds)


def _reasons(one: Candidate, chosen: Candidate) -> tuple[Reason, ...]:
    """Return why a configuration is slower than the chosen one, the most expensive reason first."""
    more = one.seconds - chosen.seconds
    if more <= _EQUAL * chosen.seconds:
        if one.launches > chosen.launches:
            return (Reason(f"{one.launches} launches instead of {chosen.launches}: the host takes longer", 0.0),)
        if more < -_EQUAL * chosen.seconds:
            return (Reason("not in the covering set, which is compiled for all products", 0.0),)
        return (Reason("as fast by the model: the first of equals is taken", 0.0),)
    other_kernel = one.kernel.entry != chosen.kernel.entry
    names = [name for name in one.terms if name in chosen.terms or name in {"repack", "second"}]
    if not other_kernel and "main_loop" in names:
        names.remove("compute")  # main loops and epilogues are more specific
    slowest = max((one.terms.get(name, 0.0) for name in _OVERLAPPED), default=0.0)
    reasons: dict[str, Reason] = {}
    for name in names:
        own = one.terms[name]
        extra = own - chosen.terms.get(name, 0.0)
        # A main loop is part of compute, which overlaps with memory.
        overlaps = one.terms["compute"] if name == "main_loop" else own
        shows = name not in _OVERLAPPED or overlaps >= _SHOWS * slowest
        if shows and extra > _MINOR * more:
            reasons[name] = Reason(_meaning(name, one, chosen), extra)
    if one.bound not in reasons and sum(reason.seconds for reason in reasons.values()) < more / 2:
        reasons[one.bound] = Reason(f"bounded by {BOUNDS[one.bound]}", more)
    return tuple(sorted(reasons.values(), key=lambda reason: -reason.seconds))


def _meaning(name: str, one: Candidate, chosen: Candidate) -> str:
    """Return the meaning of a term that takes longer."""
    config = one.config
    if name == "repack":
        longer = " for longer" if chosen.terms.get("repack") else " first"
        return f"{' and '.join(copied(config))} repacked{longer}"
    if name == "second":
        return f"a second launch, which adds the partial sums of {slices(config)} slices"
    if name == "epilogue":
        return _epilogue(config, chosen.config)
    return _loop(one, chosen) if name in {"compute", "main_loop"} else f"more for {BOUNDS[name]}"


def _epilogue(config: Config, chosen: Config) -> str:
    """Return why the epilogues of a configuration take longer."""
    if chosen.get("PINGPONG") and not config.get("PINGPONG"):
        return "epilogues that no other tile's main loop hides"
    if chosen.get("STAGED") and not config.get("STAGED"):
        return "epilogues that store without staging in shared memory"
    return "longer epilogues"


def _loop(one: Candidate, chosen: Candidate) -> str:
    """Return why the main loops of a configuration take longer."""
    parts = []
    own, best = one.waves, chosen.waves
    slower = _SLOWER_INSTRUCTION.get((one.kernel.instruction, chosen.kernel.instruction))
    if slower is not None:
        parts.append(slower)
    if own is not None and best is not None:
        if own.useful < (1 - _WASTED) * best.useful:
            parts.append(f"{own.words}: {own.useful:.0%} of its FMAs are for D, {best.useful:.0%} of the choice's")
        if not parts and _reuse(one.config) < _reuse(chosen.config):
            reuse = f"{_reuse(one.config):.0f} FMAs for each element that a tile loads, the choice"
            parts.append(f"{reuse} {_reuse(chosen.config):.0f}")
    if one.config.get("CLUSTER_M", 1) * one.config.get("CLUSTER_N", 1) > 1:
        parts.append("blocks of a cluster wait for each other")
    if not parts:
        parts += _pace(one, chosen)
    if one.bound in BOUNDS and (one.bound != chosen.bound or not parts):
        parts.append(f"bounded by {BOUNDS[one.bound]}")
    return "; ".join(parts)


def _pace(one: Candidate, chosen: Candidate) -> list[str]:
    """Return the units for which the k-steps of a configuration take more cycles per FMA."""

    def each(candidate: Candidate, name: str) -> float:
        config = candidate.config
        return candidate.pace[name] / (config["BM"] * config["BN"] * config["BK"])

    names = [name for name in one.pace if name in chosen.pace and one.pace[name] >= _SHOWS * max(one.pace.values())]
    grown = {name: each(one, name) / each(chosen, name) for name in names if chosen.pace[name]}
    most = max(grown, key=grown.__getitem__, default=None)
    return [_SLOWER[most]] if most is not None and grown[most] > 1 + _WASTED else []


def _reuse(config: Config) -> float:
    return config["BM"] * config["BN"] / (config["BM"] + config["BN"])
