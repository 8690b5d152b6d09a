"""What limits the inner kernel, counted in its machine code and in the emulator: needs no GPU.

    python benchmarks/inner_sass.py
    python benchmarks/inner_sass.py --dtypes float16 --layouts row gram --sizes 3x3 16x16 17x9 --odd

For each product it compiles what the cost model chooses for an H200 among plain FMAs, disassembles it, follows
the main loop, and prints a row of a Markdown table. The shares say how much of the time that the product takes at its
target (memory at the measured bandwidth, or FMAs at three quarters of the data sheet's rate, whichever takes
longer) issue slots, FMAs and passes through shared memory or L1 need. A second limit near 100% keeps the first
from being reached.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from lab.machine_code import Code, compiled, disassembler, main_path
from lab.markdown import markdown
from matmill.arch import Arch, get
from matmill.choose import choose_from
from matmill.config import Config
from matmill.dtypes import ALL
from matmill.emulator import Counters, Memory, run
from matmill.kernel import GemmOperands, Kernel, Production, ceil_div
from matmill.kernels.inner import INNER, cost, space
from matmill.kernels.inner.passes import groups, k_groups
from matmill.ladders.inner.subject import gram_of, inner_product
from matmill.problem import Gemm


def _plain(problem: Gemm, arch: Arch) -> tuple[Config, ...]:
    return tuple(config for config in space(problem, arch) if not config["MMA"])


CANDIDATES = [Production(INNER, _plain, cost.explain)]
#: The clock under load and the bandwidth that reading reaches, measured on an H200.
HZ, READ_BYTES_PER_S = 1.75e9, 4.35e12
#: Of the data sheet's FMAs, where they and not memory are the limit.
FMA_SHARE = 0.75
SCHEDULERS, LANES, LINE = 4, 32, 128
ELEMENTS = 1 << 28
SIZES = "1x1 2x2 3x3 4x4 5x5 7x7 8x8 12x12 16x16 24x24 32x32 48x48 64x64 96x96 128x128 3x16 17x9 128x8"
_FMA = ("FFMA", "DFMA")
_FILLS = re.compile(r"ZFILL|LDGSTS.*, !?P\d$")
_LOADS, _GENERIC = ("LDG", "LDS"), ("LD", "ST", "LDL", "STL")
HEAD = (
    "product", "tile", "registers", "spilled", "slots/k", "FMA/k", "loads/k", "copies/k", "others/k", "KB in flight",
    "issue", "FMA", "passes", "passes/ideal", "sectors/ideal",
)  # fmt: skip


def asked(m: int, n: int, dtype: str, layout: str, *, odd: bool) -> Gemm:
    """Return a product of about ELEMENTS elements; where ``odd``, rows have an odd pitch."""
    k = ELEMENTS // (m + n) // 256 * 256 + odd
    if layout == "gram":
        return gram_of(inner_product(m, m, k, ALL[dtype]))
    found = inner_product(m, n, k, ALL[dtype], "column" if layout == "column" else "row")
    if layout == "transposed":  # E is contiguous along m
        size = m * found.dtype.itemsize
        found = replace(found, a_strides=(1, m), a_align=min(16, size & -size))
    return found


@dataclass(frozen=True)
class Pass:
    """One pass through the main loop: terms of k per block, and per thread FMAs and copies."""

    terms: int
    multiplies: int
    copies: int

    @classmethod
    def of(cls, problem: Gemm, config: Config) -> Pass:
        """Count those of a configuration."""
        threads = groups(config)
        terms = config["BK"] * k_groups(config) or config["U"] * config["V"] * threads
        alone = config["GRAM"] and config["DOWN"] == 1
        outputs = config["TM"] * (config["TM"] + 1) // 2 if alone else config["TM"] * config["TN"]
        copies = [
            ceil_div(extent * config["BK"] * k_groups(config) // config[f"{name}_WIDTH"], config["BS"])
            for name, extent in (("E", problem.m), ("F", 0 if problem.gram else problem.n))
        ]
        return cls(terms, terms // threads * outputs, max(copies))


def fills(line: str) -> bool:
    """Tell whether an instruction copies zeros for what is not there.

    It is named so, or (nvdisasm 13.5) has a predicate.
    """
    return _FILLS.search(line) is not None


def instructions(found: Code, one: Pass) -> Counter[str]:
    """Count the instructions of a thread in one pass through the main loop.

    That with the most FMAs, and whole copies alone.
    """

    def size(loop: tuple[int, int]) -> tuple[int, int, int]:
        lines = found.lines[loop[0] : loop[1] + 1]
        return sum(line.startswith(_FMA) for line in lines), -sum(map(fills, lines)), len(lines)

    def worth(line: str) -> float:
        # Through a full stage's copies, and nothing that need not be.
        return -1e9 if fills(line) else 1e3 if "LDGSTS" in line else -1

    def times(body: Counter[str]) -> float:
        here = sum(body[name] for name in _FMA)
        return one.multiplies / here if here else max(1.0, one.copies / body["LDGSTS"]) if body["LDGSTS"] else 1.0

    return main_path(found, max(found.loops(), key=size), worth, times)


def emulated(kernel: Kernel[Gemm], problem: Gemm, ptx: str, k: int) -> Counters:
    """Return counts of the launch that does the work, by one block."""
    short = replace(problem, k=k)
    if problem.a_row_col[1] == 1:  # rows packed, and aligned as they were
        k_pitch = ceil_div(k, 256) * 256 + problem.k % 2
        short = replace(short, a_strides=(k_pitch, 1))
    else:
        k_pitch = k
    f_pitch = ceil_div(k, 256) * 256 + problem.k % 2
    if problem.b_strides is not None and problem.b_row_col[0] == 1 and problem.n > 1:
        short = replace(short, b_strides=(1, f_pitch))
    memory = Memory()
    numbers = np.zeros((problem.m + 1) * (k_pitch + 256) + 4096, problem.dtype.numpy)
    others = np.zeros((problem.n + 1) * (f_pitch + 256) + 4096, problem.dtype.numpy)
    operands = GemmOperands(
        memory.bind("E", numbers, access="r"),
        memory.bind("F", others, access="r"),
        memory.bind("C", None, access="r"),
        memory.bind("D", np.zeros((problem.m, problem.n), problem.dtype.numpy), access="rw"),
        workspace=memory.bind("workspace", None, access="rw"),
    )
    alone = kernel.with_config(kernel.config.launched(SPLIT_K=1))
    return run(ptx, alone.launches(short, operands)[0], memory).counters


def row(problem: Gemm, label: str, arch: Arch, tool: str) -> list[str]:
    """Return one row of the table."""
    kernel = choose_from(CANDIDATES, problem, arch).kernel
    config, size = kernel.config, problem.dtype.itemsize
    binary, found = compiled(kernel, problem.dtype, arch.target, tool)
    one = Pass.of(problem, config)
    count = instructions(found, one)
    threads = config["BS"] / one.terms  # per k
    per_k = {name: number * threads for name, number in count.items()}
    fma, loads = (sum(per_k.get(name, 0) for name in names) for names in (_FMA, _LOADS))
    copies, slots = per_k.get("LDGSTS", 0), count.total() * threads
    generic = sum(count[name] for name in _GENERIC)

    k_bytes = (problem.m + (0 if problem.gram else problem.n)) * size
    products = problem.m * (problem.m + 1) // 2 if problem.gram else problem.m * problem.n
    seconds = max(k_bytes / READ_BYTES_PER_S, 2 * products / (FMA_SHARE * arch.peak(problem.dtype.name)))
    clocks = seconds * HZ * arch.sms  # of an SM, per k
    slower = 2 if problem.dtype.name == "float64" else 1

    resident = min(config["BLOCKS_PER_SM"], ceil_div(config["SPLIT_K"], arch.sms))
    resident = min(resident, arch.resident(config["BS"], binary.resources.registers, config["SHARED_BYTES"])[0])
    flight = (max(1, config["STAGES"] - 1)) * one.terms * k_bytes * resident

    once, twice = (emulated(kernel, problem, binary.ptx, one.terms * times) for times in (4, 8))
    terms = 4 * one.terms
    direct = config["BK"] == 0
    if direct:
        sectors = (twice.global_load_sectors - once.global_load_sectors) / terms
        passes = max(sectors / 4, (twice.global_load_bytes - once.global_load_bytes) / terms / LINE)
        ideal = (twice.global_load_bytes - once.global_load_bytes) / terms / LINE
    else:
        sectors = (twice.cp_async_sectors - once.cp_async_sectors) / terms
        read = twice.shared_load_wavefronts - once.shared_load_wavefronts
        written = twice.cp_async_shared_wavefronts - once.cp_async_shared_wavefronts
        passes = (read + written) / terms
        least = twice.shared_load_wavefronts_ideal - once.shared_load_wavefronts_ideal
        ideal = least / terms + k_bytes / LINE
    width = f"E{'apxs'[config['E_MODE']]}{config['E_WIDTH']} F{'apxs'[config['F_MODE']]}{config['F_WIDTH']}"
    staged = f"V{config['V']} U{config['U']}" if direct else f"V{config['V']} BK{config['BK']}x{config['STAGES']}"
    tile = f"{config['TM']}x{config['TN']}/{config['S']} {staged} {width} {config['BS']}x{resident}"
    return [
        label,
        tile,
        str(binary.resources.registers),
        f"{binary.resources.spill_stores}" + (f" generic {generic}" if generic else ""),
        f"{slots:.1f}",
        f"{fma:.1f}",
        f"{loads:.1f}",
        f"{copies:.1f}",
        f"{slots - fma - loads - copies:.1f}",
        f"{flight / 1e3:.0f}",
        f"{slots / LANES / SCHEDULERS / clocks:.0%}",
        f"{slower * fma / LANES / SCHEDULERS / clocks:.0%}",
        f"{passes / clocks:.0%}",
        f"{passes / ideal:.2f}",
        f"{sectors * 32 / k_bytes:.2f}",
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", nargs="+", default=list(ALL), choices=list(ALL))
    parser.add_argument("--layouts", nargs="+", default=["row", "column", "gram"])
    parser.add_argument("--sizes", nargs="+", default=SIZES.split())
    parser.add_argument("--odd", action="store_true", help="an odd k, so that rows start anywhere")
    arguments = parser.parse_args()
    arch, tool = get("h200"), disassembler()
    print(markdown(HEAD, []), end="")
    for dtype in arguments.dtypes:
        for layout in arguments.layouts:
            for size in arguments.sizes:
                m, n = map(int, size.split("x"))
                if layout == "gram" and m != n:
                    continue
                label = f"{size} {dtype} {layout}{' odd' if arguments.odd else ''}"
                cells = row(asked(m, n, dtype, layout, odd=arguments.odd), label, arch, tool)
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
