"""Fits the prices of launches, which all cost models share, to what was measured of every kernel.

    python benchmarks/fit_prices.py [--judge-only] [--write]

The host's part of a launch differs from run to run: it is fitted for each record and printed, but it is no price. The
constants that models have of their own stay as they are. What is printed: how much slower than the best each model's
choices are, and the choices among all kernels.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from lab.fitting import least
from lab.gemm import shapes, tiles, wgmma_tiles
from lab.model_fit import Found, Vector, write
from matmill.arch import Arch, get
from matmill.config import Columns
from matmill.kernel import Kernel
from matmill.kernels.shared import model as shared
from matmill.problem import Gemm
from matmill.registry import PRODUCTION

RESULTS = Path(__file__).parent / "results"
KERNELS = {one.kernel.entry: one for one in PRODUCTION}
#: Records of one kernel: file, entry and reader; and records of all kernels, which also judge the choice among them.
OF_ONE = (("hgemm_tiles_h200", "hgemm", tiles.read), ("wgmma_tiles_h200", "wgmma_gemm", wgmma_tiles.read))
OF_ALL = ("shapes_h200", "thin_h200", "kernels_h100")
#: Bounds of the prices, in the order of their fields, and of what a host adds to a launch, in microseconds.
LEAST, GREATEST = (3.3e-6, 1e-6, 1e-6, 5e-8, 2.0, 0.5, 0.1), (4.5e-6, 6e-6, 6e-6, 3e-6, 60.0, 1.0, 10.0)
HOST = (-0.8, 2.5)


@dataclass(frozen=True)
class Measured:
    """One problem of a record with the timed configurations of one kernel."""

    problem: Gemm
    kernel: Kernel[Gemm]
    configs: Columns
    seconds: Vector
    launches: Vector

    @classmethod
    def of(cls, found: Found[Gemm], kernel: Kernel[Gemm]) -> Measured:
        """Count the launches of each configuration, too."""
        launches = [kernel.with_config(config).count_launches(found.problem) for config in found.configs]
        return cls(found.problem, kernel, Columns(found.configs), np.array(found.seconds), np.array(launches, float))

    def predicted(self, arch: Arch, prices: shared.Prices, host: float) -> Vector:
        """Predict the seconds of each configuration, with what the host adds to each launch."""
        explain: Any = KERNELS[self.kernel.entry].explain
        seconds: Vector = explain(self.problem, self.configs, arch, prices=prices).seconds + host * self.launches
        return seconds


@dataclass(frozen=True)
class Record:
    """One run: of each problem what was measured of each kernel."""

    name: str
    arch: Arch
    problems: list[list[Measured]]


def read(results: Path) -> list[Record]:
    """Read every record that the prices are fitted to."""
    records = []
    for name, entry, reader in OF_ONE:
        result = [[Measured.of(one, KERNELS[entry].kernel)] for one in reader([results / f"{name}.json"])]
        records.append(Record(name, get("h200"), result))
    for name in OF_ALL:
        rows = json.loads((results / f"{name}.json").read_text(encoding="utf-8"))["records"]
        of_row = ([(shapes.found(row, one.kernel), one.kernel) for one in PRODUCTION] for row in rows)
        result = [[Measured.of(one, kernel) for one, kernel in entries if one.configs] for entries in of_row]
        records.append(Record(name, get(name.rpartition("_")[2]), [entries for entries in result if entries]))
    return records


def regrets(record: Record, prices: shared.Prices, host: float) -> tuple[dict[str, list[float]], list[float]]:
    """Give the time of the predicted choice over the best, by kernel and among all; and each problem's mean error.

    Errors are logarithms, of which those of configurations near the best count most.
    """
    chosen: dict[str, list[float]] = {}
    errors = []
    for entries in record.problems:
        predicted = [one.predicted(record.arch, prices, host) for one in entries]
        for one, each in zip(entries, predicted, strict=True):
            chosen.setdefault(one.kernel.entry, []).append(float(one.seconds[each.argmin()] / one.seconds.min()))
        every, seconds = np.concatenate(predicted), np.concatenate([one.seconds for one in entries])
        if len(entries) > 1:
            chosen.setdefault("all", []).append(float(seconds[every.argmin()] / seconds.min()))
        near = (seconds.min() / seconds) ** 2
        errors.append(float((near * np.abs(np.log(every / seconds))).sum() / near.sum()))
    return chosen, errors


def main() -> None:
    """Fit, judge and write, as asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--judge-only", action="store_true", help="keep the prices, fit what the hosts add")
    parser.add_argument("--write", action="store_true", help="put the prices into kernels/shared/constants.json")
    args = parser.parse_args()
    records, prices = read(RESULTS), shared.PRICES
    names = [field.name for field in fields(prices)]
    count = 0 if args.judge_only else len(names)

    def of(point: Vector) -> tuple[shared.Prices, list[float]]:
        result = dict(zip(names[:count], np.exp(point[:count]).tolist(), strict=True))
        return replace(prices, **result), (point[count:] * 1e-6).tolist()

    def loss(point: Vector) -> float:
        changed, hosts = of(point)
        total = 0.0
        for record, host in zip(records, hosts, strict=True):
            chosen, errors = regrets(record, changed, host)
            total += float(np.mean(errors)) + sum(float(np.log(each).mean()) for each in chosen.values())
        return total

    start = np.array([*np.log([getattr(prices, name) for name in names[:count]]), *[0.5] * len(records)])
    low = np.array([*np.log(LEAST[:count]), *[HOST[0]] * len(records)])
    high = np.array([*np.log(GREATEST[:count]), *[HOST[1]] * len(records)])
    point, value = least(loss, start, (low, high), step=0.2, shortest=0.02, most=400)
    prices, hosts = of(point)
    prices = replace(prices, **{name: float(f"{getattr(prices, name):.3g}") for name in names})
    print(f"loss {loss(start):.4f} before, {value:.4f} fitted\n{prices}")
    for record, host in zip(records, hosts, strict=True):
        chosen, errors = regrets(record, prices, host)
        print(f"{record.name}: the host adds {host * 1e6:.2f} us to a launch, error {np.mean(errors):.1%}")
        for kernel, each in chosen.items():
            print(f"  {kernel:12} {len(each):4} problems, chosen/best {np.exp(np.log(each).mean()):.4f}")
    if args.write:
        write(Path(shared.__file__).with_name("constants.json"), prices)


if __name__ == "__main__":
    main()
