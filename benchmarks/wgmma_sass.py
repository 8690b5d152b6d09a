"""What the consumers' loop of the warp-specialised kernel is made of, counted in its machine code: needs no GPU.

    python benchmarks/wgmma_sass.py
    python benchmarks/wgmma_sass.py --out benchmarks/results/wgmma_sass.json

For each tile it compiles ``kernels/wgmma`` for packed bfloat16 matrices, A and B contiguous along k, disassembles it,
and prints a row of a Markdown table: stages, shared bytes, registers, and the instructions that a consumer's warp
issues per k-step. ``docs/wgmma.md`` shows what ``--out`` records.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from lab.gemm.wgmma_tiles import packed
from lab.machine_code import Code, compiled, disassembler, opcodes
from lab.wgmma_page import counted, tile_of
from matmill.arch import get
from matmill.dtypes import BF16
from matmill.jit.nvrtc import compiler_version
from matmill.kernels.wgmma import WGMMA
from matmill.kernels.wgmma.tiles import EXAMPLES, ROWS, SPAN, Shape, configured

#: Extents of a problem that every tile suits.
_EXTENT = 8192
#: Bytes of k of one product.
_PRODUCT = 32


def consumers_loop(found: Code) -> tuple[str, ...]:
    """Return the shortest loop that has products in it: that over k-steps, in which a failed wait branches away."""
    loops = [found.lines[start : end + 1] for start, end in found.loops()]
    return min((loop for loop in loops if any("HGMMA" in line for line in loop)), key=len)


def row(shape: Shape, tool: str) -> dict[str, Any]:
    """Return what is counted of one tile."""
    problem = packed(_EXTENT, _EXTENT, _EXTENT, BF16, "column")
    config = configured(shape, problem, get("h200"))
    binary, result = compiled(WGMMA.with_config(config), BF16, get("h200").target, tool)
    loop = consumers_loop(result)
    count = opcodes(loop)
    row_tiles = config["BM"] // ROWS // (1 if config["PINGPONG"] else config["CONSUMERS"])
    steps = count["HGMMA"] / (SPAN // _PRODUCT * row_tiles)
    return {
        "tile": tile_of(config),
        "stages": config["STAGES"],
        "shared_bytes": config["SHARED_BYTES"],
        "registers": binary.resources.registers,
        "consumer_registers": config["CONSUMER_REGISTERS"] or binary.resources.registers,
        "spilled_bytes": binary.resources.spill_stores + binary.resources.spill_loads,
        "products": count["HGMMA"] / steps,
        "instructions": len(loop) / steps,
    }


def main() -> None:
    """Print the table, and record it where ``--out`` says so."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a JSON file")
    arguments = parser.parse_args()
    tool = disassembler()
    rows = [row(shape, tool) for shape in EXAMPLES]
    print(counted(rows), end="")
    if arguments.out:
        compiler = ".".join(map(str, compiler_version()))
        lines = ",\n".join(f"  {json.dumps(one)}" for one in rows)
        arguments.out.write_text(f'{{\n "nvrtc": "{compiler}",\n "rows": [\n{lines}\n ]\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
