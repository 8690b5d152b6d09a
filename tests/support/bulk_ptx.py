"""Kernels in PTX for tests of bulk copies: one block or cluster with a tile of shared memory and an mbarrier."""

from __future__ import annotations

import itertools
from dataclasses import replace

from matmill.emulator import Memory, Report, run
from matmill.launch import Argument, Launch, Pointer, TensorMap
from support.ptx_tools import HEADER, Array, Options

#: Bytes of the tile and threads of the block, unless a test says otherwise.
TILE, THREADS = 1024, 32
_LABELS = itertools.count()

_START = """
.reg .b32 t, tile, full, r<8>; .reg .b64 a<4>; .reg .b16 mask; .reg .pred first, p, done;
mov.u32 t, %tid.x; mov.u32 tile, s_tile; mov.u32 full, s_full; setp.eq.u32 first, t, 0;
@first mbarrier.init.shared::cta.b64 [full], 1;
@first fence.mbarrier_init.release.cluster;
"""
#: All writes to the tile are for the async proxy to see.
FENCE = "fence.proxy.async.shared::cta; bar.sync 0;"
CLUSTER_SYNC = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
COMMIT = "@first cp.async.bulk.commit_group;"
STORED = f"{COMMIT} @first cp.async.bulk.wait_group 0; bar.sync 0;"


def expect(nbytes: int) -> str:
    """Write PTX by which thread 0 arrives at the barrier, whose phase then awaits so many bytes."""
    return f"@first mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], {nbytes};"


def wait(parity: int = 0) -> str:
    """Return all threads wait for a phase of the barrier."""
    label = f"W{next(_LABELS)}"
    return f"{label}: mbarrier.try_wait.parity.shared::cta.b64 done, [full], {parity}; @!done bra {label};"


def _each_word(code: str, array: str, nbytes: int) -> str:
    """Run ``code`` for each word: register r0 is its offset, r1 its address in the tile, a0 that in the array."""
    label = f"L{next(_LABELS)}"
    return f"""
mov.u32 r2, %ntid.x; shl.b32 r2, r2, 2; shl.b32 r0, t, 2;
{label}: setp.ge.u32 p, r0, {nbytes}; @p bra {label}_end;
add.u32 r1, tile, r0; cvt.u64.u32 a0, r0; add.u64 a0, a0, {array};
{code}
add.u32 r0, r0, r2; bra {label};
{label}_end:
"""


def fill(array: str = "x", nbytes: int = TILE) -> str:
    """Return the array's first bytes to the tile, by ordinary stores."""
    return _each_word("ld.global.b32 r3, [a0]; st.shared.b32 [r1], r3;", array, nbytes) + FENCE


def dump(array: str = "o", nbytes: int = TILE) -> str:
    """Return the tile to the array, by ordinary loads."""
    return "bar.sync 0;" + _each_word("ld.shared.b32 r3, [r1]; st.global.b32 [a0], r3;", array, nbytes)


def load(tensor: TensorMap, to: int, at: tuple[int, ...], name: str = "m", *, hint: bool = False) -> str:
    """Write PTX by which thread 0 loads a box to a byte of the tile."""
    where, hints = ", ".join(map(str, at)), (".L2::cache_hint", ", 0x1000000000000000") if hint else ("", "")
    return (
        f"add.u32 r4, tile, {to}; @first cp.async.bulk.tensor.{len(tensor.sizes)}d.shared::cluster.global.tile"
        f".mbarrier::complete_tx::bytes{hints[0]} [r4], [{name}, {{{where}}}], [full]{hints[1]};"
    )


def store(tensor: TensorMap, source: int, at: tuple[int, ...], name: str = "m", *, add: bool = False) -> str:
    """Write PTX by which thread 0 stores or adds a box from a byte of the tile."""
    opcode, operation = ("cp.reduce.async", ".add") if add else ("cp.async", "")
    return (
        f"add.u32 r4, tile, {source}; @first {opcode}.bulk.tensor.{len(tensor.sizes)}d.global.shared::cta{operation}"
        f".tile.bulk_group [{name}, {{{', '.join(map(str, at))}}}], [r4];"
    )


def bulk(form: str, operands: str) -> str:
    """Write PTX by which thread 0 copies contiguous bytes: ``form`` follows ``cp.async.bulk`` or is a whole opcode."""
    return f"@first {'' if form.startswith('cp') else 'cp.async.bulk.'}{form} {operands};"


TO_SHARED = "shared::cluster.global.mbarrier::complete_tx::bytes"
BETWEEN = "shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
TO_GLOBAL = "global.shared::cta.bulk_group"


def emulate(
    body: str,
    arrays: dict[str, Array],
    maps: dict[str, TensorMap] | None = None,
    *,
    access: dict[str, str] | None = None,
    fresh: tuple[str, ...] = (),
    tile: int = TILE,
    threads: int = THREADS,
    blocks: int = 1,
    cluster: int = 1,
    pdl: bool = False,
    declarations: str = "",
    options: Options | None = None,
) -> Report:
    """Run a kernel whose registers of the same names hold the addresses of arrays and maps.

    The pointer of a map names its array, and its address is an offset there. ``fresh`` arrays are uninitialised.
    """
    memory, maps = Memory(), maps or {}
    pointers = {
        name: memory.bind(name, array, access=(access or {}).get(name, "rw"), initialised=name not in fresh)
        for name, array in arrays.items()
    }
    arguments: list[Argument] = [placed(tensor, pointers) for tensor in maps.values()]
    parameters = [f".param .align 64 .b8 p_{name}[128]" for name in maps]
    parameters += [f".param .u64 p_{name}" for name in arrays]
    loads = [f".reg .b64 {name}; mov.b64 {name}, p_{name}; cvta.param.u64 {name}, {name};" for name in maps]
    loads += [f".reg .b64 {name}; ld.param.u64 {name}, [p_{name}];" for name in arrays]
    meet = CLUSTER_SYNC if cluster > 1 else "bar.sync 0;"
    text = (
        f"{HEADER}{declarations}\n.visible .entry k({', '.join(parameters)})\n{{\n"
        f".shared .align 1024 .b8 s_tile[{tile}]; .shared .align 8 .b64 s_full;\n"
        + "\n".join(loads)
        + f"{_START}{meet}\n{body}\nret;\n}}\n"
    )
    launch = Launch(
        "k", "k", (blocks * cluster, 1, 1), (threads, 1, 1), (*arguments, *pointers.values()), cluster=(cluster, 1, 1),
        pdl=pdl,
    )  # fmt: skip
    return run(text, launch, memory, **(options or {}))


def placed(tensor: TensorMap, pointers: dict[str, Pointer]) -> TensorMap:
    """Return the map with the address of the array that its pointer names."""
    name, offset = tensor.pointer.name, tensor.pointer.address
    return replace(tensor, pointer=Pointer(name, pointers[name].address + offset))
