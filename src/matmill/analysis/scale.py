"""The time of a product whose k is distributed over many GPUs: the local product, and an all_reduce of its sums.

The all_reduce is NCCL's. Its time is the least ``latency + bytes / rate`` of rings and trees with the protocols LL,
LL128 and Simple, by the model by which NCCL itself chooses (``src/graph/tuning.cc`` of NCCL 2.28 and later), corrected
by two measured constants. It uses NVLink within a node, and one network card per GPU between nodes. NVLink's in-switch
sums (NVLS) are not modelled: they gain nothing for sums as small as these. The GPUs of a partly used node count as a
separate node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log2

#: ``baseLatencies`` of ``tuning.cc``, in seconds: the fixed time of an all_reduce, per protocol.
_BASE = {
    "tree": {"LL": 6.8e-6, "LL128": 14.0e-6, "Simple": 8.4e-6},
    "ring": {"LL": 6.6e-6, "LL128": 14.0e-6, "Simple": 8.4e-6},
}
#: ``hwLatencies``, in seconds per step: over NVLink, and over the network.
_NVLINK = {
    "tree": {"LL": 0.6e-6, "LL128": 1.25e-6, "Simple": 4.0e-6},
    "ring": {"LL": 0.6e-6, "LL128": 1.9e-6, "Simple": 3.4e-6},
}
_NETWORK = {
    "tree": {"LL": 5.0e-6, "LL128": 8.5e-6, "Simple": 14.0e-6},
    "ring": {"LL": 2.7e-6, "LL128": 4.0e-6, "Simple": 14.0e-6},
}
#: ``llMaxBws``: the most bytes/s of LL in one node of Hopper GPUs, in two nodes and in more (with Intel CPUs).
_LL_MOST = (141.0e9, 39.0e9, 20.4e9)
#: Share of the links' rate for a protocol's data: LL sends 4 bytes of flags with 4 of data, LL128 8 with 120.
_SHARES = {
    "tree": {"LL": 0.92 / 3.8, "LL128": 0.92 * 7 / 9, "Simple": 0.92},
    "ring": {"LL": 0.5, "LL128": 0.92, "Simple": 1.0},
}
#: Seconds of an all_reduce beyond NCCL's model, and the share of its rate that data reach: fitted by hand to messages
#: of 4 bytes to 256 MiB over two H100s (``benchmarks/results/ranks_h100x2.json``). More GPUs were not timed.
_BESIDES, _REACHED = 1.8e-6, 0.82
#: The least efficiency at which more GPUs are worth their price.
_WORTH = 0.5


@dataclass(frozen=True)
class Links:
    """The connections between GPUs: rates in bytes per second and direction.

    ``nvlink`` is the rate of one GPU: 18 links of NVLink 4 with 20.6e9 each, as NCCL counts them (``SM90_NVLINK_BW`` in
    its ``topo.h``; NVIDIA's data sheet has 25e9). ``network`` is the rate of one GPU's card: 400 Gbit/s, as in NVIDIA's
    DGX H100 and H200 (eight ConnectX-7 a node).
    """

    node: int = 8
    nvlink: float = 18 * 20.6e9
    network: float = 50e9


@dataclass(frozen=True)
class AllReduce:
    """An all_reduce: the algorithm and protocol that NCCL would choose, and the two terms of its time in seconds."""

    algorithm: str
    protocol: str
    latency: float
    transfer: float

    @property
    def seconds(self) -> float:
        """The sum of both terms."""
        return self.latency + self.transfer


@dataclass(frozen=True)
class Scaled:
    """A product on ``gpus`` GPUs: seconds of the local product of ``k`` terms and of the all_reduce, if any.

    ``efficiency`` is the time of one GPU over that of all together.
    """

    gpus: int
    k: int
    local: float
    reduction: AllReduce | None
    efficiency: float

    @property
    def seconds(self) -> float:
        """The local product, then the all_reduce, without overlap."""
        return self.local + (0.0 if self.reduction is None else self.reduction.seconds)


@dataclass(frozen=True)
class Limits:
    """The limits of scaling: the number of GPUs with the least time, and the largest number with half efficiency."""

    fastest: int
    half_efficient: int


def all_reduce(nbytes: int, gpus: int, links: Links = Links()) -> AllReduce:
    """Return the fastest all_reduce of ``nbytes`` over two or more GPUs.

    >>> all_reduce(1024, 8).protocol, all_reduce(1 << 30, 8).algorithm
    ('LL', 'ring')
    """
    return min(
        (_reduction(algorithm, protocol, nbytes, gpus, links) for algorithm in _BASE for protocol in _BASE[algorithm]),
        key=lambda made: made.seconds,
    )


def _reduction(algorithm: str, protocol: str, nbytes: int, gpus: int, links: Links) -> AllReduce:
    nodes = ceil(gpus / links.node)
    inside = ceil(gpus / nodes)
    nvlink, network = _NVLINK[algorithm][protocol], _NETWORK[algorithm][protocol]
    rate = links.nvlink if nodes == 1 else min(links.nvlink, inside * links.network) if inside > 1 else links.network
    rate *= _SHARES[algorithm][protocol]
    if protocol == "LL":
        rate = min(rate, _LL_MOST[min(nodes, 3) - 1])
    latency = _BASE[algorithm][protocol]
    if algorithm == "ring":
        steps, between = 2 * (gpus - 1), 2 * (nodes - 1) if nodes > 1 else 0
        latency += (steps - between) * nvlink + between * network
        rate *= gpus / steps
    else:
        latency += 2 * ((inside - 1) * nvlink + int(log2(nodes)) * network)
        rate /= 2
    return AllReduce(algorithm, protocol, latency + _BESIDES, nbytes / (rate * _REACHED))


def scaled(
    local: Callable[[int], float],
    k: int,
    nbytes: int,
    gpus: int,
    links: Links = Links(),
) -> Scaled:
    """Return a product of ``k`` terms on ``gpus`` GPUs; ``local`` predicts the seconds of so many terms on one GPU."""
    part = ceil(k / gpus)
    reduction = all_reduce(nbytes, gpus, links) if gpus > 1 else None
    result = Scaled(gpus, part, local(part), reduction, 1.0)
    return Scaled(gpus, part, result.local, reduction, local(k) / (gpus * result.seconds))


def limits(local: Callable[[int], float], k: int, nbytes: int, links: Links = Links()) -> Limits:
    """Return the limits of scaling among 1, 2, 4, ... up to a million GPUs."""
    curve: list[Scaled] = []
    for power in range(21):
        curve.append(scaled(local, k, nbytes, 1 << power, links))
        # From here on the time only grows.
        if curve[-1].efficiency < _WORTH and curve[-1].seconds > min(one.seconds for one in curve):
            break
    fastest = min(curve, key=lambda one: one.seconds)
    return Limits(fastest.gpus, max(one.gpus for one in curve if one.efficiency >= _WORTH))
