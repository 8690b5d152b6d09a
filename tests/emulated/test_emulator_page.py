"""The emulator's pages show a message for every kind of hazard: each is what the emulator says of the kernel here."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from hopper.run import in_emulator
from matmill.emulator import KernelFault, Memory, run
from matmill.emulator.engine.schedule import deadlocks as stuck
from matmill.emulator.report.hazards import KINDS, SEVERITIES
from matmill.jit.compile import compile_ptx
from matmill.jit.source import Source
from matmill.launch import Launch, TensorMap
from matmill.textures import Texture
from support.hopper_defects import DEFECTS

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / name for name in ("emulator.md", "emulator-hopper.md", "emulator-textures.md")]
DYNAMIC = "extern __shared__ __align__(128) float s[]; "
PRODUCT = DYNAMIC + (
    'float d[4]; FILL asm volatile("FENCE wgmma.mma_async.sync'
    '.aligned.m64n8k8.f32.tf32.tf32 {%0, %1, %2, %3}, %4, %4, 0, 1, 1; wgmma.commit_group.sync.aligned; WAIT" '
    ': "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]) : "l"(__cvta_generic_to_shared(s) >> 4 | DESCRIPTOR)); '
    "x[t % 64] = d[0];"
)


LOAD = (
    "__shared__ unsigned long long b; const unsigned to = __cvta_generic_to_shared(s), full = "
    '__cvta_generic_to_shared(&b); if (t == 0) asm volatile("mbarrier.init.shared::cta.b64 [%1], 1; '
    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%1], 256; cp.async.bulk.tensor.2d.shared::cluster.global"
    '.mbarrier::complete_tx::bytes [%0], [%2, {0, ROW}], [%1];" :: "r"(to), "r"(full), "l"(MAP)); __syncthreads(); '
    'asm volatile("{ .reg .pred p; L: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra L; }" :: "r"(full));'
)


def product(
    fence: str = "wgmma.fence.sync.aligned;", wait: str = "", descriptor: str = "0", fill: str = "s[t % 64] = 0;"
) -> str:
    """Return the body of a kernel of one warpgroup that makes a product."""
    fill += " __syncthreads();"
    return PRODUCT.replace("FENCE", fence).replace("WAIT", wait).replace("DESCRIPTOR", descriptor).replace("FILL", fill)


def load(row: int = 0, tensor_map: str = "&map") -> str:
    """Return code that copies a box from ``row`` on to ``s`` and waits for it."""
    return LOAD.replace("ROW", str(row)).replace("MAP", tensor_map)


#: Found by comparing launches (``tests/host/test_pytest_plugin.py``), with the source (``test_findings.py``), or with a
#: file (``tests/host/test_cli_emulate.py``).
COMPARED = {"order", "unset-variable", "unwritten-output", "wrong-output"}
WAIT = "wgmma.wait_group.sync.aligned 0;"
#: The body of a kernel of 64 or 128 threads, by hazard kind. It has ``float* x`` (64 elements, read-only where the kind
#: says so), a tensor map of x as 8 x 8 elements, whose box is the whole of it, and a texture of x.
BODIES = {
    "out-of-bounds": "x[t + 1] = 0;",
    "misaligned": "*(float2*)(x + t) = make_float2(0, 0);",
    "read-only": "x[t] = 1;",
    "uninitialised-shared": "__shared__ float s[65]; s[t] = x[t]; __syncthreads(); x[t] = s[t + 1];",
    "uninitialised-global": "x[t] += 1;",
    "read-only-cache": "x[t] = t; __syncthreads(); if (__ldg(x + 63 - t) == 5) x[t] = 0;",
    "uninitialised-local": "int v[64]; v[63] = t; x[t] = v[t];",
    "uninitialised-register": "float v; for (int i = 0; i < x[0]; i++) v += x[i]; x[t] = v;",
    "use-after-free": "volatile float* p = (float*)malloc(16); p[1] = t; free((void*)p); x[t] = p[1];",
    "invalid-free": "free(x + t + 1);",
    "race": "__shared__ float s[64]; s[t] = x[t]; x[t] = s[63 - t];",
    "same-value": "x[0] = 1;",
    "divergent-barrier": 'if (t % 2) __syncthreads(); else asm volatile("bar.sync 0;" ::: "memory");',
    "early-exit": "if (t >= 40) return; __syncthreads(); x[t] = 1;",
    "missing-wait": (
        'extern __shared__ float s[]; const unsigned at = __cvta_generic_to_shared(s + t); asm volatile("cp.async.ca'
        '.shared.global [%0], [%1], 4;" :: "r"(at), "l"(x + t) : "memory"); __syncthreads(); x[t] = s[t];'
    ),
    "dependent-launch": 'x[t] = 1; asm volatile("griddepcontrol.wait;" ::: "memory");',
    "deadlock": 'if (t < 32) asm volatile("bar.sync 1, 64;"); else asm volatile("bar.sync 2, 64;");',
    "step-limit": 'for (unsigned i = 1; i; i += 2) asm volatile("" : "+r"(i));',
    "trap": "if (t == 5) __trap();",
    "assert": "assert(t != 5);",
    "call-target": "x[t] = ((float (*)(float))x)(t);",
    "stack-overflow": (
        "struct S { static __device__ float f(float v) { return v * f(v + 1); } }; if (t == 5) x[t] = S::f(t);"
    ),
    "partial-warp": (
        'unsigned d = t; if (t < 40) asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(d)); x[t] = d;'
    ),
    "shuffle": "x[t] = __shfl_xor_sync(0xffff, x[t], 1);",
    "shuffle-source": "if (t < 20) x[t] += __shfl_down_sync(0xfffff, x[t], 16);",
    "warpgroup": 'asm volatile("wgmma.fence.sync.aligned;");',
    "matrix-descriptor": product(wait=WAIT, descriptor="1ull << 50"),
    "register-in-flight": product() + f'asm volatile("{WAIT}");',
    "missing-wgmma-fence": product(fence="", wait=WAIT),
    "unwaited": product(),
    "mbarrier": (
        "extern __shared__ float s[]; const unsigned b = __cvta_generic_to_shared(s); if (t == 0) asm volatile("
        '"mbarrier.init.shared::cta.b64 [%0], 64;" :: "r"(b)); asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"'
        ':: "r"(b) : "memory");'
    ),
    "missing-proxy-fence": (
        "extern __shared__ float s[]; s[t] = x[t]; __syncthreads(); const unsigned from = __cvta_generic_to_shared(s);"
        'if (t == 0) asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256; '
        'cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" :: "l"(x), "r"(from) : "memory");'
    ),
    "cluster": (
        "extern __shared__ float s[]; const unsigned to = __cvta_generic_to_shared(s + t); unsigned there; "
        'asm volatile("mapa.shared::cluster.u32 %0, %1, 1; st.shared::cluster.f32 [%0], %2;" '
        ': "=&r"(there) : "r"(to), "f"(x[t]));'
    ),
    "tensor-map": DYNAMIC + load(tensor_map="x"),
    "bulk-copy": (
        "extern __shared__ float s[]; const unsigned from = __cvta_generic_to_shared(s); "
        'if (t == 0) asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 24;" :: "l"(x), "r"(from));'
    ),
    "box-outside": DYNAMIC + load(row=8),
    "swizzle": product(wait=WAIT, fill=load()),
    "texture": "x[t] = tex2D<float>(image, t, 0);",
    "texture-type": "if (tex1D<int>(image, t) == 5) x[t] = 0;",
    "texture-coordinate": "if (tex1D<float>(image, t == 5 ? __int_as_float(0x7fffffff) : 0.5f) == 5) x[t] = 0;",
    "texture-written": "x[t] = 2; __syncthreads(); if (tex1Dfetch<float>(image, t) == 5) x[t] = 0;",
    "register-pool": 'asm volatile("setmaxnreg.inc.sync.aligned.u32 64; setmaxnreg.inc.sync.aligned.u32 40;");',
}
WARPGROUP = {"matrix-descriptor", "register-in-flight", "missing-wgmma-fence", "unwaited", "register-pool", "swizzle"}
SOURCE = """struct alignas(64) Map { char bytes[128]; }; extern "C" __global__ void
k(float* x, const __grid_constant__ Map map, cudaTextureObject_t image) { const int t = threadIdx.x;
BODY
}
"""


def found(kind: str) -> list[str]:
    """Return what the emulator says of the kernel of a kind."""
    text = SOURCE.replace("BODY", BODIES[kind])
    memory, x = Memory(), np.ones(64, np.float32)
    access, initialised = "r" if kind == "read-only" else "rw", kind != "uninitialised-global"
    pointer = memory.bind("x", x, access=access, initialised=initialised)
    block = (128 if kind in WARPGROUP else 64, 1, 1)
    blocks = (2 if kind == "cluster" else 1, 1, 1)
    tensor = TensorMap(pointer, "float32", sizes=(8, 8), strides=(32,), box=(8, 8), swizzle=32)
    args = pointer, tensor, memory.attach("image", Texture(x), pointer)
    launch = Launch("demo", "k", blocks, block, args, 256, pdl=kind == "dependent-launch", cluster=blocks)
    try:
        report = run(compile_ptx(Source("demo", "k", text), "sm_90a"), launch, memory, late_copies=True)
    except KernelFault as fault:
        return [str(fault.hazard)]
    return [str(hazard) for hazard in report.hazards]


@pytest.mark.parametrize("kind", sorted(set(KINDS) - COMPARED))
def test_the_page_shows_what_the_emulator_says(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stuck, "STEP_LIMIT", 20_000)
    start = f"{SEVERITIES[kind]}: {kind} at "
    messages = [m.replace("20,000 steps", "2,000,000 steps") for m in found(kind) if m.startswith(start)]
    assert messages
    assert any(without_numbers(message) in shown() for message in messages), messages


def test_the_page_shows_what_is_said_of_a_planted_mistake() -> None:
    (defect,) = (one for one in DEFECTS if one.name == "a stage released one step early")
    _, report = in_emulator(defect.trial(), defect.changes)
    assert without_numbers(str(report.hazards[0])) in shown()


def shown() -> str:
    """Return the text of the pages, without the numbers of registers."""
    return without_numbers("".join(page.read_text(encoding="utf-8") for page in PAGES))


def without_numbers(text: str) -> str:
    """Return the text without the numbers of registers, which are the compiler's."""
    return re.sub(r"%([a-z]+)\d+", r"%\1", text)


def test_every_kind_has_a_kernel() -> None:
    assert set(BODIES) == set(KINDS) - COMPARED
