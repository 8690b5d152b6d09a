"""What the main loop of the 16-bit product is made of, counted in its machine code: needs no GPU.

    python benchmarks/hgemm_sass.py
    python benchmarks/hgemm_sass.py --arch rtx4090

For each tile shape of the GPU and each pair of layouts it compiles ``kernels/hgemm`` for packed, aligned matrices,
disassembles it and prints a row of a Markdown table: instructions per warp and k-tile by class, and what share of the
time that the tensor cores need for the tile the other parts need beside them.
"""

from __future__ import annotations

import argparse
from collections import Counter
from itertools import product

from lab.machine_code import Code, compiled, disassembler, opcodes
from matmill.arch import Arch, get
from matmill.config import Config
from matmill.dtypes import F16
from matmill.errors import ArgumentError
from matmill.jit.compile import Resources
from matmill.kernels.hgemm import HGEMM
from matmill.kernels.hgemm.tiles import shapes, threads, with_vector_widths
from matmill.kernels.shared.tensor_cores import ELEMENT_BYTES
from matmill.problem import Gemm

#: FMAs of Hopper's tensor cores per SM and clock with mma.sync: about 62% of those that they make with wgmma, whose
#: rate is the data sheet's (Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via
#: Microbenchmarking", 2024).
HOPPER_FMAS = 0.62 * 2048
SCHEDULERS = 4
#: What a warp moves to or from shared memory with one instruction of those counted here: 16 bytes per lane.
_MOVED = 512
#: Extents of a problem that every tile shape takes without checks that fail.
_EXTENT = 8192


def main_loop(found: Code) -> tuple[str, ...]:
    """Return the loop with the most HMMA."""
    loops = [found.lines[start : end + 1] for start, end in found.loops()]
    return max(loops, key=lambda loop: sum("HMMA" in line for line in loop))


def fmas_per_clock(arch: Arch) -> float:
    """Count the FMAs per SM and clock, float16 with float32 sums.

    Raises :class:`~matmill.errors.ArgumentError` for a GPU whose rate is not known.
    """
    if arch.capability == (9, 0):
        return HOPPER_FMAS
    if "float16" not in arch.matrix_flops:
        wanted = "a GPU with tensor cores of known rate"
        raise ArgumentError(argument="arch", got=arch.name, wanted=wanted, fix="Pick h200, a100, rtx4090 or t4.")
    return arch.matrix_flops["float16"] / (2 * arch.sms * arch.boost_hz)


def row(config: Config, used: Resources, count: Counter[str], arch: Arch) -> str:
    """Return one row of the table: counts per warp and k-tile, clocks per k-tile of a block."""
    warps = threads(config) // 32
    copies = count["LDGSTS"] + count["STS"]  # without cp.async they go through registers
    others = count.total() - count["HMMA"] - count["LDSM"] - copies
    clocks = config["BK"] * config["BM"] * config["BN"] / fmas_per_clock(arch)
    shared = (count["LDSM"] + copies) * warps * _MOVED / (arch.shared_bytes_per_s / (arch.sms * arch.boost_hz))
    issue = count.total() * warps / SCHEDULERS
    fetched = (config["BM"] + config["BN"]) * config["BK"] * ELEMENT_BYTES
    cells = (
        f"{config['BM']}x{config['BN']}x{config['BK']}",
        f"{config['BM'] // config['WARPS_M']}x{config['BN'] // config['WARPS_N']}",
        config["STAGES"],
        config["BLOCKS_PER_SM"],
        "mk"[config["A_K_INNER"]] + "nk"[config["B_K_INNER"]],
        used.registers,
        used.spill_stores + used.spill_loads,
        count["HMMA"],
        count["LDSM"],
        copies,
        others,
        f"{clocks:.0f}",
        f"{shared / clocks:.0%}",
        f"{issue / clocks:.0%}",
        f"{fetched / clocks:.1f}",
    )
    return "| " + " | ".join(map(str, cells)) + " |"


HEAD = (
    "| tile | warp tile | stages | blocks/SM | A, B along | registers | spilled bytes | HMMA | LDSM | copies | others "
    "| matrix clocks | shared | issue | L2 B/clock |"
)


def table(arch: Arch, tool: str) -> list[str]:
    """Return the table's rows."""
    lines = [HEAD, "|" + "---|" * (HEAD.count("|") - 1)]
    n = _EXTENT
    packed, transposed = (n, 1), (1, n)
    for shape, a, b in product(shapes(arch), (packed, transposed), (packed, transposed)):
        config = with_vector_widths(shape, Gemm(n, n, n, F16, a_strides=a, b_strides=b)).launched(SPLIT_K=1)
        binary, found = compiled(HGEMM.with_config(config), F16, arch.target, tool)
        lines.append(row(config, binary.resources, opcodes(main_loop(found)), arch))
    return lines


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="h200")
    arguments = parser.parse_args()
    print("\n".join(table(get(arguments.arch), disassembler())))


if __name__ == "__main__":
    main()
