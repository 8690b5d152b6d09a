"""Count what the kernels chosen for products of every shape ask of memory, in the emulator: needs no GPU.

    python benchmarks/shapes_emulated.py --out benchmarks/results/shapes_emulated.json

Products of each class of ``benchmarks/shapes.py``: what is chosen for an H200 runs on a smaller product with the same
work tiles. ``docs/shapes.md`` shows the record. It takes less than a minute.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from lab.gemm.shapes_emulated import emulate, entries, over_least
from matmill.bench.environment import describe


def main() -> None:
    """Emulate every product and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a JSON file")
    arguments = parser.parse_args()
    records = []
    for entry in entries():
        begin = time.monotonic()
        record = emulate(entry)
        records.append(record)
        read, written, _ = over_least(record)
        result = f"{record['kernel'].split()[0]}, read {read:.2f}, written {written:.2f}"
        print(f"{entry.kind} {entry.emulated}: {result}, {time.monotonic() - begin:.1f} s", flush=True)
    if arguments.out:
        lines = ",\n".join(f"  {json.dumps(one)}" for one in records)
        environment = json.dumps(describe(gpu=False))
        text = f'{{\n "environment": {environment},\n "records": [\n{lines}\n ]\n}}\n'
        arguments.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
