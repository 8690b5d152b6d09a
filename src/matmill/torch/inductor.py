"""Products of programs that ``torch.compile`` compiles, decided while Inductor compiles them.

Inductor asks twice. Where it would pad operands, matmill's product of the unpadded ones competes with torch's of the
padded ones. Where it picks a kernel, matmill's replaces torch's if it is decided to be faster; under ``max_autotune``
it is one choice more beside ATen and Triton, and Inductor's own times decide. The operator
``torch.ops.matmill.matmul`` writes to Inductor's buffers.

Products whose sizes are symbols, and code for C++ (AOTInductor's packages), stay torch's. The private names of torch
that are used here are alike in :data:`~matmill.torch.compiling.RELEASES`.
"""

from __future__ import annotations

import hashlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

import sympy
import torch
from torch._inductor import choices, config, ir, lowering, select_algorithm
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.fx_passes import pad_mm
from torch._inductor.utils import is_view
from torch._inductor.virtualized import V
from torch.utils._python_dispatch import _disable_current_modes

from matmill import __version__
from matmill.torch import compiled, fusion
from matmill.torch.decide import Decider, Decision, Product, lacks_memory
from matmill.torch.fusion import fuse, separate
from matmill.torch.host import ACTIVATIONS
from matmill.torch.schemas import FUNCTIONAL

_T = TypeVar("_T")

_aten = torch.ops.aten
_MATMUL = FUNCTIONAL["matmul"]
#: torch's kernels among Inductor's choices, and matmill's function beside them.
_KERNELS = {"aten::mm": "mm", "aten::bmm": "mm", "aten::addmm": "addmm", "aten::baddbmm": "addmm"}
_PADDED = {_aten.mm.default, _aten.addmm.default, _aten.bmm.default}
_ROW_BYTES = 16
#: torch's time over matmill's from which on Triton is not asked.
_FAR_AHEAD = 1.1
#: What a product must save outside of CUDA graphs. In a program that waits for its host (Swin-T, batches of 49 x 49 x
#: 32, H200) a call of matmill's cost about 10 us more than one of ATen's, though repeated alone it costs 2 us less.
_LEAST_SECONDS = 2e-6
_FAILED = "torch.compile keeps torch's own product, because matmill failed while it compiled, with"


@cache
def kernels() -> dict[str, Any]:
    """Return matmill's functions as Inductor's choices, registered under the names that generated code calls."""
    functions = {"mm": compiled.mm, "addmm": compiled.addmm, "matmul": compiled.matmul}
    choice = select_algorithm.ExternKernelChoice
    return {name: choice(function, name=f"matmill_{name}") for name, function in functions.items()}


class Pass(CustomGraphPass):  # type: ignore[misc] # torch may be absent, and is Any then
    """A pass over Inductor's graphs, after ``before``: the pass or passes that were configured.

    Inductor's caches on disk know by :meth:`uuid` what was compiled with it.
    """

    def __init__(self, decider: Decider, change: Callable[[Any], None], before: Any) -> None:
        self.decider, self._change = decider, change
        self._before = before if isinstance(before, list) else [] if before is None else [before]

    def __call__(self, graph: Any) -> None:
        """Run the passes."""
        self.decider.compiles = True
        for other in self._before:
            other(graph)
        if not config.cpp_wrapper:
            with _outside():
                _or_torch(lambda: self._change(graph), None)

    def __deepcopy__(self, _memo: Any) -> Pass:
        """Return this pass: ``torch.compile(mode=...)`` copies Inductor's configuration."""
        return self

    def uuid(self) -> Any:
        """Return all that compiled code depends on, or None, which keeps it out of caches."""
        self.decider.compiles = True
        before = [other.uuid() if isinstance(other, CustomGraphPass) else None for other in self._before]
        if None in before:
            return None
        table = self.decider.options.table
        options = replace(self.decider.options, table=None), None if table is None else table.items()
        return repr((__version__, _sources(), options, torch.are_deterministic_algorithms_enabled(), before))


class Compiling:
    """The decisions of one session inside of Inductor: two of its functions and two of its settings, replaced."""

    def __init__(self, decider: Decider) -> None:
        self.decider = decider
        #: What is replaced: its owner and name, Inductor's own, and this session's.
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def enter(self) -> None:
        """Let Inductor ask from now on."""
        lower()
        compiled.count_in(self.decider)
        self._replace(choices.InductorChoices, "get_template_configs", self._get_template_configs)
        self._replace(pad_mm, "should_pad", self._should_pad)
        for name, change in (("pre", fuse), ("post", separate)):
            into = partial(change, decide=self._beats_two_kernels)
            self._replace(config, f"post_grad_custom_{name}_pass", partial(Pass, self.decider, into))

    def leave(self) -> None:
        """Give Inductor its own back, but for what somebody else has replaced since."""
        for owner, name, theirs, ours in self._replaced:
            if getattr(owner, name) is ours:
                setattr(owner, name, theirs)
        self._replaced.clear()

    def _replace(self, owner: Any, name: str, ours: Callable[[Any], Any]) -> None:
        theirs = getattr(owner, name)
        self._replaced.append((owner, name, theirs, ours(theirs)))
        setattr(owner, name, self._replaced[-1][-1])

    def _get_template_configs(self, theirs: Any) -> Any:
        def get_template_configs(own: Any, inputs: Any, templates: Any, *others: Any, **options: Any) -> Any:
            known = theirs(own, inputs, templates, *others, **options)
            return _or_torch(lambda: self._choices(known, inputs, templates), known)

        return get_template_configs

    def _should_pad(self, theirs: Any) -> Any:
        def should_pad(match: Any, a: Any, b: Any, operator: Any, input: Any = None) -> bool:  # noqa: A002 — torch's name
            if not theirs(match, a, b, operator, input):
                return False
            return not _or_torch(lambda: self._beats_padding(match, operator), otherwise=False)

        return should_pad

    def _choices(self, theirs: list[Any], inputs: Any, templates: Sequence[Any]) -> list[Any]:
        """Return Inductor's choices for a product: theirs, matmill's, or both where it times them."""
        name = next((_KERNELS[x.uid] for x in templates if getattr(x, "uid", None) in _KERNELS), None)
        if name is None or not theirs or V.graph.cpp_wrapper:
            return theirs
        nodes, layout = inputs.nodes(), theirs[0].layout
        if name == "addmm" and any(inputs.get_scalar(factor) != 1 for factor in ("alpha", "beta")):
            return theirs
        fixed = [_fixed(x) for x in (*map(_final, nodes), layout)]
        if None in fixed or not self._decides(V.graph.current_node, layout.device):
            return theirs
        with _outside():
            *operands, out = (_memory(*x) for x in fixed if x is not None)
            product = _product(operands, out)
            precision = self.decider.precision(product.a)
            decision = self.decider.decide(product, wait=True)
        if not _pays(decision):
            return theirs
        summed = {"precision": precision, "batch_invariant": self.decider.options.batch_invariant or None}
        choice = kernels()[name].bind(nodes, layout, **{name: x for name, x in summed.items() if x is not None})
        timed = _autotuned() and not self.decider.options.batch_invariant
        return [*theirs, choice] if timed and decision.ratio < _FAR_AHEAD else [choice]

    def _beats_padding(self, match: Any, operator: Any) -> bool:
        """Tell whether matmill's product is faster than torch's of operands that are padded."""
        factors = (match.kwargs.get("alpha", 1), match.kwargs.get("beta", 1))
        names = ("input", "mat1", "mat2") if operator is _aten.addmm else ("mat1", "mat2")
        nodes = [match.kwargs[name] for name in names]
        layouts = [_expected(node) for node in nodes]
        if operator not in {_aten.mm, _aten.addmm} or factors != (1, 1) or None in layouts:
            return False
        if not self._decides(match.output_node(), nodes[-1].meta["val"].device):
            return False
        with _outside():
            operands = [_memory(*layout) for layout in layouts if layout is not None]
            a, b = operands[-2:]
            copies = [_copies(match, name) for name in names[-2:]]
            rows = torch.empty_strided(
                (a.shape[0], b.shape[1]), (_padded(b.shape[1], a.element_size()), 1), dtype=a.dtype, device=a.device
            )
            product = _product(operands, rows)
            by_padding = _with_padding(a, b, product.addend, copies)
            way = "beside padding, copying {:.2g} and {:.2g}".format(*copies) if any(copies) else "beside padding"
            decision = self.decider.decide(product._replace(by_torch=by_padding, way=way), wait=True)
        return _pays(decision)

    def _beats_two_kernels(
        self, node: Any, operands: tuple[Any, Any, Any], activation: str | None
    ) -> dict[str, Any] | None:
        """Return the keywords of matmill's operator where it is faster than torch's kernels, else None.

        Under ``max_autotune`` torch's is the product alone: a kernel of Triton might have the activation for nothing.
        """
        a, b, bias = operands
        layouts = [_expected(x) for x in (bias, a, b) if x is not None]
        if None in layouts or not self._decides(node, node.meta["val"].device):
            return None
        product = _product([_memory(*layout) for layout in layouts if layout is not None], None)
        if activation is not None:
            then = ACTIVATIONS[activation]

            def by_two_kernels(*tensors: Any) -> Any:
                return then(compiled.by_torch(*tensors))

            if _autotuned():
                product = product._replace(activation=activation, way="beside the product alone")
            else:
                product = product._replace(activation=activation, by_torch=by_two_kernels)
        decision = self.decider.decide(product, wait=True)
        if not _pays(decision):
            return None
        options: dict[str, Any] = {"activation": activation, "precision": self.decider.precision(product.a)}
        options["batch_invariant"] = self.decider.options.batch_invariant or None
        return {name: x for name, x in options.items() if x is not None}

    def _decides(self, node: Any, device: Any) -> bool:
        """Tell whether a node is decided here, by the session that is on, on a device that it serves.

        Threads have configurations of their own: the session may be off, or unknown to caches. Gradients do not say
        from which module they stem.
        """
        own = config.post_grad_custom_pre_pass
        on = bool(self._replaced) and isinstance(own, Pass) and own.decider is self.decider
        return on and _serves(self.decider, device) and not self._excludes(node)

    def _excludes(self, node: Any) -> bool:
        """Tell whether a node stems from an excluded module."""
        trace = node.meta.get("stack_trace") or ""
        files = (getattr(sys.modules.get(name), "__file__", None) for name in self.decider.options.exclude)
        paths = (Path(file) for file in files if file)
        return any((f"{path.parent}{os.sep}" if path.stem == "__init__" else str(path)) in trace for path in paths)


@cache
def lower() -> None:
    """Let ``torch.ops.matmill.matmul`` write to Inductor's buffers, on a GPU and from Python code."""
    fallback = lowering.fallback_handler(_MATMUL, add_to_fallback_set=False)

    def lowered(a: Any, b: Any, bias: Any = None, **options: Any) -> Any:
        device, own = a.get_device(), config.post_grad_custom_pre_pass
        served = _serves(own.decider, device) if isinstance(own, Pass) else device.type == "cuda"
        if V.graph.cpp_wrapper or not served:
            return fallback(a, b, bias, **options)
        value = V.graph.current_node.meta["val"]
        layout = ir.FlexibleLayout(device, value.dtype, ir.convert_shape_to_inductor(value.size()))
        nodes = select_algorithm.realize_inputs(*(x for x in (a, b, bias) if x is not None))
        named = {name: x for name, x in options.items() if x is not None}
        return kernels()["matmul"].bind(nodes, layout, **named).output_node()

    kernels()  # code in Inductor's caches calls them by name
    lowering.register_lowering(_MATMUL, type_promotion_kind=None)(lowered)


def _serves(decider: Decider, device: Any) -> bool:
    """Tell whether products on a device are decided."""
    with _outside():
        return decider.device.serves(torch.empty(0, device=device))


def _or_torch(answer: Callable[[], _T], otherwise: _T) -> _T:
    """Return an answer to Inductor, or where that fails torch's own, and warn of any error but a lack of memory."""
    try:
        return answer()
    except Exception as error:  # noqa: BLE001 — a program compiles, whatever fails here
        if not lacks_memory(error):
            reason = ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
            warnings.warn(f"{_FAILED} {reason} Please report it.", RuntimeWarning, stacklevel=2)
        return otherwise


def _pays(decision: Decision | None) -> TypeGuard[Decision]:
    """Tell whether matmill's kernel saves the GPU more than a program's host may lose by it: in a graph, nothing."""
    if decision is None or decision.run is None:
        return False
    measured = decision.torch_seconds is not None
    return not measured or config.triton.cudagraphs or decision.gain >= _LEAST_SECONDS


def _autotuned() -> bool:
    """Tell whether Inductor times its choices."""
    return bool(config.max_autotune or config.max_autotune_gemm)


#: Sizes, strides, element type and device.
_Layout = tuple[tuple[int, ...], tuple[int, ...], Any, Any]


def _final(node: Any) -> Any:
    """Return the layout of an operand: what is not laid out yet will have the order of what it is computed from."""
    layout, buffer = node.get_layout(), node
    while isinstance(buffer, (ir.TensorBox, ir.StorageBox)):
        buffer = buffer.data
    order = buffer.get_fill_order() if isinstance(buffer, ir.ComputedBuffer) else None
    return layout.as_fill_order(order) if order else layout


def _fixed(layout: Any) -> _Layout | None:
    """Return a layout as it will be in the end, or None if it is symbolic, or does not begin on 16 bytes."""
    if isinstance(layout, ir.FlexibleLayout):
        layout = layout.get_fixed_layout_without_freezing()
    if not all(isinstance(x, (int, sympy.Integer)) for x in (*layout.size, *layout.stride, layout.offset)):
        return None
    if int(layout.offset) * layout.dtype.itemsize % _ROW_BYTES:
        return None
    return tuple(map(int, layout.size)), tuple(map(int, layout.stride)), layout.dtype, layout.device


def _expected(node: Any) -> _Layout | None:
    """Return the layout that an operand will have: Inductor pads the rows of what it computes itself."""
    x = node.meta["val"]
    if not all(type(size) is int for size in (*x.shape, *x.stride())):
        return None
    strides = x.stride()
    if pad_mm.get_non_view_def(node).op != "placeholder":
        strides = tuple(_padded(stride, x.element_size()) for stride in strides)
    return tuple(x.shape), strides, x.dtype, x.device


def _padded(stride: int, itemsize: int) -> int:
    """Return a stride as Inductor pads it."""
    if not config.comprehensive_padding or stride <= config.padding_stride_threshold:
        return stride
    align = int(config.padding_alignment_bytes) // itemsize
    return -(-stride // align) * align


def _with_padding(a: Any, b: Any, addend: Any, copies: Sequence[float]) -> Callable[[Any, Any, Any], Any]:
    """Return torch's product of padded operands.

    Each is copied so many times a call, as fast as memory is: Inductor's own kernel does it, not torch's slower ones.
    """
    align = _ROW_BYTES // a.element_size()
    (m, k), n = a.shape, b.shape[1]
    to_m, to_k, to_n = (0 if size == 1 else -size % align for size in (m, k, n))

    def pad(x: Any, rows: int, columns: int) -> Any:
        if x.stride(0) == 1 != x.stride(1):  # the order of elements is kept
            return pad(x.mT, columns, rows).mT
        return torch.nn.functional.pad(x, (0, columns, 0, rows))

    left, right = pad(a, to_m, to_k), pad(b, to_k, to_n)
    if addend is not None:
        row = addend.dim() == 1 or addend.shape[0] == 1
        addend = torch.nn.functional.pad(addend, (0, to_n)) if row else pad(addend, to_m, to_n)
    grown = to_m or to_k, to_k or to_n
    shares = [share if grows else 0.0 for share, grows in zip(copies, grown, strict=True)]
    sources = [x.new_empty(int(share * x.numel())) for x, share in zip((a, b), shares, strict=True)]
    copied = [torch.empty_like(x) for x in sources]

    def by_padding(*_tensors: Any) -> Any:
        for x, y in zip(copied, sources, strict=True):
            x.copy_(y)
        return compiled.by_torch(left, right, addend)[:m, :n]

    return by_padding


def _copies(match: Any, name: str) -> float:
    """Return how often an operand is copied to be padded: not at all, or once for all products that it enters."""
    if pad_mm.should_exclude_padding_time(match, name):
        return 0.0
    reached, products = [pad_mm.get_non_view_def(match.kwargs[name])], set()
    for node in reached:
        for user in node.users:
            if user.target in _PADDED:
                products.add(user)
            elif isinstance(user.target, torch._ops.OpOverload) and is_view(user.target):  # noqa: SLF001 — its only name
                reached.append(user)
    return 1 / max(1, len(products))


def _product(operands: Sequence[Any], out: Any) -> Product:
    *added, a, b = operands
    addend = compiled.unrepeated(added[0]) if added else None
    target = None if out is None else compiled.target(out)
    return Product(a, b, addend, (False, False), compiled.by_torch, out=target)


def _memory(size: tuple[int, ...], strides: tuple[int, ...], dtype: Any, device: Any) -> Any:
    """Return a random tensor of a layout; torch's random numbers for the program stay as they are."""
    extent = 1 + sum((n - 1) * stride for n, stride in zip(size, strides, strict=True)) if all(size) else 0
    x = torch.empty(extent, dtype=dtype, device=device)
    if dtype.is_floating_point:
        x.normal_(generator=torch.Generator(device).manual_seed(0))
    return x.as_strided(size, strides)  # rows may be one row, repeated


@contextmanager
def _outside() -> Iterator[None]:
    """Leave the modes of the compiler, in which tensors have no memory, and the program's own.

    Where a compiler dispatches in Python, torch's operators are decomposed there: they would be timed with that.
    """
    native = torch._C._DisablePythonDispatcher()  # noqa: SLF001 — torch has no public name for it
    with native, _disable_current_modes(), torch.no_grad(), torch.autocast("cuda", enabled=False):
        yield


@cache
def _sources() -> str:
    """Return what identifies the code that takes part in compiling."""
    files = (Path(__file__), Path(compiled.__file__), Path(fusion.__file__))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
