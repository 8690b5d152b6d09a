"""The paper's model of PHVM: the cycles of one launch over GS blocks of BS threads, and the best (GS, BS).

Lei, Liu, Song, "Time cost model and optimal configuration method for GPU parallel computation of matrix
multiplication", Computer Science 51(6A), 2024, equations (2)-(11), in our words. PHVM makes each of the m * n outputs
of E (m, k) @ F (k, n) by a parallel inner product: thread i takes the terms i, i + GS * BS, i + 2 * GS * BS, …; a block
sums its threads' shares in a shared-memory tree and adds the sum atomically to the output. Cycles of one output:

    t_pre  = (k / (BS * GS) * (2 * sigma_g + sigma_add + sigma_mul)     a thread's terms: two loads, multiply, add
              + sigma_s + log(BS) * (sigma_add + 3 * sigma_s)) / u_SM   store the share, then the tree
    t_post = sigma_s + sigma_g + sigma_add + sigma_g                    the atomic: read share and output, add, write

    case 1, t_pre < CoreS / BS * t_post:  t_pre + GS * t_post           the atomics queue up
    case 2, otherwise:                    GS * BS / CoreS * t_pre + CoreS / BS * t_post

There are two readings. As printed, the last term of case 2 has GS as one more factor, and the base of the logarithm is
not stated; the paper's optima follow only without that factor and with the natural logarithm (docs/cost-models.md shows
all combinations). The model is for learning: matmill does not choose by it, and the same page says where it is wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from matmill.arch import Arch, Measured
from matmill.errors import ArgumentError, unknown_name

#: Threads of a warp, and the most threads of a block.
WARP, LARGEST_BLOCK = 32, 1024
#: Sizes are 64-bit integers on the device.
_LARGEST = 2**63 - 1


@dataclass(frozen=True)
class PhvmParameters:
    """The GPU's parameters in the model; the paper's symbols in brackets. Latencies in cycles.

    SMs (SM_NUM), resident threads per SM (SMS), FP32 units of all SMs (CoreS), latency of an add, a multiply, an access
    to global and to shared memory (sigma_add, sigma_mul, sigma_g, sigma_s), and the used share of an SM (u_SM).
    """

    sm_num: int
    threads_per_sm: int
    cores: int
    sigma_add: float
    sigma_mul: float
    sigma_g: float
    sigma_s: float
    u_sm: float

    @property
    def resident_threads(self) -> int:
        """Threads that the GPU holds at once; the model uses all of them: GS * BS."""
        return self.sm_num * self.threads_per_sm


#: Measured parameters by arch, from the paper's table. :func:`of_measured` returns those of probed GPUs.
PARAMETERS: dict[str, PhvmParameters] = {
    "rtx2080ti": PhvmParameters(
        sm_num=68,
        threads_per_sm=1024,
        cores=4352,
        sigma_add=1,
        sigma_mul=2,
        sigma_g=346,
        sigma_s=49.39,
        u_sm=0.27,
    ),
    "a100": PhvmParameters(
        sm_num=108,
        threads_per_sm=2048,
        cores=6912,
        sigma_add=1,
        sigma_mul=2,
        sigma_g=317,
        sigma_s=34.46,
        u_sm=0.16,
    ),
}


@dataclass(frozen=True)
class Reading:
    """One way to read the equations: the logarithm's base, ``/ u_SM`` on t_pre, GS in the last term of case 2."""

    log_base: float = math.e
    divides_by_u_sm: bool = True
    gs_in_last_term: bool = False


#: ``printed`` uses the natural logarithm, which the paper leaves open, so that the readings differ in one factor.
READINGS: dict[str, Reading] = {"printed": Reading(gs_in_last_term=True), "corrected": Reading()}


@dataclass(frozen=True)
class PhvmPrediction:
    """Cycles of a launch for all outputs, with its ``t_pre`` and ``t_post`` (cycles) and ``case`` (1 or 2)."""

    gs: int
    bs: int
    cycles: float
    t_pre: float
    t_post: float
    case: int


def parameters(arch: str, argument: str = "arch") -> PhvmParameters:
    """Return the parameters of the arch of that name.

    Raises :class:`~matmill.errors.ArgumentError`, with the names of arches that have them, if this one has none.

    >>> parameters("a100").resident_threads
    221184
    """
    entry = PARAMETERS.get(arch.lower())
    if entry is None:
        raise ArgumentError(
            argument=argument,
            got=f"{arch!r}, whose latencies the model has no measured values for",
            wanted=f"one of {', '.join(PARAMETERS)}",
            fix="Name one of these, or measure that GPU with `matmill probe`: the model needs sigma_g and sigma_s.",
        )
    return entry


def of_measured(arch: Arch, device: Measured, utilization: float = 1.0) -> PhvmParameters:
    """Return the parameters of an arch that was probed.

    A probe cannot measure u_SM, because it does not run the paper's kernel: ``utilization`` is above 0 and at most 1.
    Raises :class:`~matmill.errors.ArgumentError` for other values.
    """
    return with_utilization(
        PhvmParameters(
            sm_num=arch.sms,
            threads_per_sm=arch.threads_per_sm,
            cores=arch.fp32_lanes,
            sigma_add=device.sigma_add,
            sigma_mul=device.sigma_mul,
            sigma_g=device.sigma_g,
            sigma_s=device.sigma_s,
            u_sm=1.0,
        ),
        utilization,
    )


def with_utilization(parameters: PhvmParameters, utilization: float) -> PhvmParameters:
    """Return the parameters with another u_SM. Raises :class:`~matmill.errors.ArgumentError` outside (0, 1]."""
    if not 0 < utilization <= 1:
        raise ArgumentError(
            argument="utilization",
            got=f"{utilization:.6g}",
            wanted="a number above 0 and at most 1",
            fix="It is the share of an SM that is in use: the paper has 0.27 and 0.16.",
        )
    return replace(parameters, u_sm=utilization)


def feasible(parameters: PhvmParameters) -> tuple[tuple[int, int], ...]:
    """Return every (GS, BS) that the paper allows, by ascending GS.

    GS * BS is the number of resident threads; BS is a multiple of 32, divides the threads of an SM, and is at most
    1024.

    >>> feasible(PARAMETERS["rtx2080ti"])
    ((68, 1024), (136, 512), (272, 256), (544, 128), (1088, 64), (2176, 32))
    """
    largest = min(LARGEST_BLOCK, parameters.threads_per_sm)
    sizes = [bs for bs in range(WARP, largest + 1, WARP) if parameters.threads_per_sm % bs == 0]
    return tuple((parameters.resident_threads // bs, bs) for bs in reversed(sizes))


def predict(  # noqa: PLR0917 — the order is that of the field: problem, then launch
    parameters: PhvmParameters, m: int, n: int, k: int, gs: int, bs: int, reading: str | Reading = "corrected"
) -> PhvmPrediction:
    """Return the cycles for E (m, k) @ F (k, n) over ``gs`` blocks of ``bs`` threads, feasible or not.

    ``reading`` is a name in :data:`READINGS` or a :class:`Reading`. Raises :class:`~matmill.errors.ArgumentError` for a
    size below 1 or beyond 64 bits, :class:`~matmill.errors.UnknownNameError` for another name.

    >>> result = predict(PARAMETERS["a100"], 5, 5, 30_000_000, 864, 256)
    >>> result.case, f"{result.cycles:.4g}"
    (2, '4.355e+08')
    """
    for name, value in (("m", m), ("n", n), ("k", k), ("gs", gs), ("bs", bs)):
        if not 1 <= value <= _LARGEST:
            wanted, fix = "a whole number from 1 to 2**63 - 1", "Give one in that range."
            raise ArgumentError(argument=name, got=f"{value:.6g}", wanted=wanted, fix=fix)
    p, how = parameters, _reading(reading)
    terms = k / (bs * gs) * (2 * p.sigma_g + p.sigma_add + p.sigma_mul)
    tree = math.log(bs) / math.log(how.log_base) * (p.sigma_add + 3 * p.sigma_s)
    t_pre = (terms + p.sigma_s + tree) / (p.u_sm if how.divides_by_u_sm else 1)
    t_post = p.sigma_s + p.sigma_g + p.sigma_add + p.sigma_g
    atomics = p.cores / bs * t_post
    if t_pre < atomics:
        return PhvmPrediction(gs, bs, m * n * (t_pre + gs * t_post), t_pre, t_post, case=1)
    last = atomics * (gs if how.gs_in_last_term else 1)
    return PhvmPrediction(gs, bs, m * n * (gs * bs / p.cores * t_pre + last), t_pre, t_post, case=2)


def predictions(
    parameters: PhvmParameters, m: int, n: int, k: int, reading: str | Reading = "corrected"
) -> tuple[PhvmPrediction, ...]:
    """Return :func:`predict` for every feasible (GS, BS), by ascending GS."""
    return tuple(predict(parameters, m, n, k, gs, bs, reading) for gs, bs in feasible(parameters))


def best(parameters: PhvmParameters, m: int, n: int, k: int, reading: str | Reading = "corrected") -> PhvmPrediction:
    """Return the feasible (GS, BS) with the fewest predicted cycles; of equal ones, the one with the fewest blocks.

    >>> result = best(PARAMETERS["a100"], 5, 5, 30_000_000)
    >>> result.gs, result.bs
    (864, 256)
    >>> best(PARAMETERS["a100"], 5, 5, 30_000_000, reading="printed").bs
    1024
    """
    return min(predictions(parameters, m, n, k, reading), key=lambda made: made.cycles)


def traffic(m: int, n: int, k: int) -> int:
    """Return the bytes that PHVM reads in float32: both vectors of k elements for each of the m * n outputs.

    >>> traffic(5, 5, 30_000_000)
    6000000000
    """
    return 2 * 4 * m * n * k


def _reading(reading: str | Reading) -> Reading:
    if isinstance(reading, Reading):
        return reading
    if reading not in READINGS:
        raise unknown_name("reading", reading, READINGS)
    return READINGS[reading]
