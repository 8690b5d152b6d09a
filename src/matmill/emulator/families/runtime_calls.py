"""Calls of CUDA's runtime in device code: printf, assert, malloc and free.

CUDA C++ programming guide, "Formatted Output", "Assertion", "Dynamic Global Memory Allocation and Operations".
"""

from __future__ import annotations

import re

import numpy as np

from matmill.emulator.arith.row import Row
from matmill.emulator.engine.bind.barrier_operand import of_lane
from matmill.emulator.engine.bind.bound_block import BoundBlock
from matmill.emulator.frontend.syntax import Instruction
from matmill.emulator.program.table import Action, Call, Value, instructions
from matmill.emulator.report.hazards import fault

_CONVERSION = re.compile(r"%([-+ #0]*)(\*|\d*)(\.(?:\*|\d*))?(hh|h|ll|l|z|j|t)?([diouxXeEfFgGaAcsp%])")
_LONGEST = 1 << 16


class _Text:
    """Reads the memory at generic addresses of a lane."""

    def __init__(self, bound: BoundBlock) -> None:
        self.machine = bound.machine
        self.lanes = bound.lanes

    def bytes_at(self, lane: int, address: int, count: int) -> bytes:
        """Return up to ``count`` bytes, or fewer at the end of memory."""
        region, at = self.machine.region_at("generic", address)
        if region is None or at >= region.end:
            return b""
        base = self.lanes.base(region.kind)
        offset = at - region.start + (int(base[lane]) if base is not None else 0)
        data = region.data[offset : offset + min(count, region.end - at)]
        return data.tobytes()

    def string_at(self, lane: int, address: int) -> str:
        """Return the zero-terminated string at an address."""
        return self.bytes_at(lane, address, _LONGEST).split(b"\0", 1)[0].decode("utf-8", "replace")

    def formatted(self, lane: int, form: str, buffer: int) -> str:
        """Format the arguments at ``buffer``, each aligned to its size, as printf does."""
        at = buffer

        def taken(size: int, kind: str) -> int | float:
            nonlocal at
            at = -(-at // size) * size
            data = self.bytes_at(lane, at, size).ljust(size, b"\0")
            at += size
            return np.frombuffer(data, f"{kind}{size}")[0].item()  # type: ignore[no-any-return]

        def one(match: re.Match[str]) -> str:
            flags, width, precision, length, conversion = match.groups("")
            if conversion == "%":
                return "%"
            width = str(taken(4, "i")) if width == "*" else width
            precision = f".{taken(4, 'i')}" if precision == ".*" else precision
            spec = f"%{flags}{width}{precision}"
            if conversion in "eEfFgGaA":
                value = taken(8, "f")
                return (spec + conversion) % value if conversion not in "aA" else float(value).hex()
            if conversion == "s":
                return (spec + "s") % self.string_at(lane, int(taken(8, "u")))
            if conversion == "p":
                return (f"%{flags}{width}s") % hex(int(taken(8, "u")))
            size = 8 if length in {"ll", "l", "z", "j", "t"} else 4
            number = int(taken(size, "i" if conversion in "dic" else "u"))
            if length in {"h", "hh"}:
                bits = 16 if length == "h" else 8
                number &= (1 << bits) - 1
                number -= (number >> bits - 1 << bits) if conversion in "di" else 0
            if conversion == "c":
                return (f"%{flags}{width}s") % chr(number & 0xFF)
            return (spec + conversion.replace("u", "d").replace("i", "d")) % number

        return _CONVERSION.sub(one, form)


@instructions("vprintf")
def print_formatted(i: Instruction) -> Action:
    """Bind printf: its output is in the report, in the order in which threads execute it."""
    result, form, buffer = i.operands

    def bind(bound: BoundBlock) -> Call:
        text, active = _Text(bound), bound.participants()

        def call(forms: Row, buffers: Row, out: Row) -> None:
            for lane in np.flatnonzero(active()).tolist():
                form = text.string_at(lane, int(forms[lane]))
                line = text.formatted(lane, form, int(buffers[lane]))
                bound.machine.context.printed.add(line)
                out[lane] = len(_CONVERSION.findall(form))
            bound.machine.progress += 1

        return call

    return Action(i, (Value(form, "u8"), Value(buffer, "u8")), (Value(result, "u4"),), bind=bind, tally="control")


@instructions("__assertfail")
def assertion_failed(i: Instruction) -> Action:
    """Bind the failure of assert, which ends the launch."""

    def bind(bound: BoundBlock) -> Call:
        text, active = _Text(bound), bound.participants()

        def call(messages: Row, files: Row, lines: Row, functions: Row, _size: Row) -> None:
            lanes = np.flatnonzero(active())
            if not len(lanes):
                return
            lane = int(lanes[0])
            condition, file, function = (text.string_at(lane, int(row[lane])) for row in (messages, files, functions))
            name = bound.lanes.thread_name(lane)
            where = f"{file.rsplit('/', 1)[-1]}:{int(lines[lane])}"
            message = f"{bound.machine.launch.kernel}: {name}: assertion {condition!r} failed in {function} ({where})"
            raise fault("assert", message, i)

        return call

    kinds = ("u8", "u8", "u4", "u8", "u8")
    sources = tuple(Value(o, kind) for o, kind in zip(i.operands, kinds, strict=True))
    return Action(i, sources, (), bind=bind, tally="control", masks_itself=True)


@instructions("malloc")
def allocate(i: Instruction) -> Action:
    """Bind malloc: uninitialised memory that exists until the launch ends."""
    result, size = i.operands

    def bind(bound: BoundBlock) -> Call:
        active, machine = bound.participants(), bound.machine

        def call(sizes: Row, out: Row) -> None:
            out[...] = 0
            for lane in np.flatnonzero(active()).tolist():
                out[lane] = machine.heap.allocate(of_lane(sizes, lane), bound.lanes.thread_name(lane))
            machine.progress += 1

        return call

    return Action(i, (Value(size, "u8"),), (Value(result, "u8"),), bind=bind, tally="memory")


@instructions("free")
def release(i: Instruction) -> Action:
    """Bind free: once, for memory from malloc. Its bytes stay as they are, and any use of them is reported."""

    def bind(bound: BoundBlock) -> Call:
        active, machine = bound.participants(), bound.machine

        def call(addresses: Row) -> None:
            for lane in np.flatnonzero(active()).tolist():
                address, thread = of_lane(addresses, lane), bound.lanes.thread_name(lane)
                wrong = machine.heap.free(address, f"{thread} freed it ({i.location})") if address else ""
                if wrong:
                    message = f"{machine.launch.kernel}: {thread} frees {wrong}, in {i.text!r}"
                    machine.hazards.add("invalid-free", i, message, i)
            machine.progress += 1

        return call

    return Action(i, (Value(i.operands[0], "u8"),), (), bind=bind, tally="memory", masks_itself=True)
