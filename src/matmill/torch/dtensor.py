"""matmill's operators on DTensors: sharding rules for torch's dispatcher, and functions that check placements first.

A rule maps placements of the operands, on one dimension of a device mesh, to the placement of the result if nothing
moves between ranks. ``P`` is a partial sum, ``R`` a replica, ``S(i)`` a shard of dimension i:

| operator      | operands                                 | result                  |
|---------------|------------------------------------------|-------------------------| | all           | all R
| R                       | | inner, matmul | a sharded in k, b sharded in k           | P, without an epilogue  | |
| one P, the other R                       | P, without an epilogue  | | matmul        | a sharded in rows, b R
| sharded in rows         | |               | a R, b sharded in columns                | sharded in columns      | |
| both sharded in a batch dimension        | sharded in it           | | transpose     | S(-1), or S(-2), or P
| S(-2), or S(-1), or P   | | transpose_add | x S(-1), y S(-2), or x S(-2), y S(-1)    | as y                    | |
| both P, or sharded in a batch dimension  | the same                |

A bias is sharded as the rows or columns to which it is added. Operands in other placements are refused, with the
placements that work: redistribution may cost more than the product, so the caller must do it. A replica counts as a
shard, which it becomes without communication.

:func:`matmul` with a bias or an activation, of operands sharded in k, first adds the partial sums by an all_reduce in
their own type, and then rounds once: its result is replicated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from matmill.errors import ArgumentError
from matmill.torch import gradients
from matmill.torch.checks import check_fake
from matmill.torch.host import along, finished
from matmill.torch.schemas import FUNCTIONAL, OPERATORS

#: The result's placement and the operands', on one dimension of a mesh.
Rule: TypeAlias = tuple[Any, tuple[Any, ...]]
#: Yields the rules of an operator for operands of these shapes, with or without an epilogue.
Rules: TypeAlias = Callable[[tuple[Sequence[int], ...], bool], Iterator[Rule]]

_R, _P = Replicate(), Partial()


def inner(e: Any, f: Any) -> Any:
    """Return :func:`matmill.torch.inner` of DTensors.

    For operands sharded in k, the result is a partial sum in the operands' type.
    """
    _result(("inner", e, f))
    return gradients.inner(e, f)


def matmul(a: Any, b: Any, bias: Any = None, **options: Any) -> Any:
    """Return :func:`matmill.torch.matmul` of DTensors."""
    activation, out_dtype = options.get("activation"), options.get("out_dtype")
    plain = bias is None and activation is None
    if plain or not any(one.is_partial() for one in _result(("matmul", a, b))):
        _result(("matmul", a, b) if bias is None else ("matmul", a, b, bias), epilogue=not plain)
        return gradients.matmul(a, b, bias, **options)
    if not torch.compiler.is_compiling():  # a compiler's checks have their own messages
        check_fake("matmul", (a, b, bias), options)
    sums = torch.float32 if a.dtype.itemsize < torch.float32.itemsize else a.dtype
    summed = {name: options[name] for name in ("precision", "batch_invariant") if name in options}
    total = gradients.matmul(a, b, out_dtype=sums, **summed)
    total = total.redistribute(placements=[_R if one.is_partial() else one for one in total.placements])
    added = None if bias is None else along(bias, a.dim(), b.dim())
    return finished(total, added, activation).to(out_dtype or a.dtype)


def _gradient(x: Any, y: Any, *, precision: str | None, batch_invariant: bool = False) -> Any:
    """Return ``x @ y`` in that precision, or from torch, which moves them, where no rule takes their placements."""
    try:
        _result(("matmul", x, y))
    except ArgumentError:
        return torch.matmul(x, y)
    return gradients.matmul(x, y, precision=precision, batch_invariant=batch_invariant)


def transpose(x: Any) -> Any:
    """Return :func:`matmill.torch.transpose` of a DTensor: the shardings of the last two dimensions are exchanged."""
    _result(("transpose", x))
    return gradients.transpose(x)


def transpose_add(x: Any, y: Any, *, alpha: Any = 1, beta: Any = 1) -> Any:
    """Return :func:`matmill.torch.transpose_add` of DTensors: ``x.mT`` and ``y`` must be sharded alike."""
    _result(("transpose_add", x, y))
    return gradients.transpose_add(x, y, alpha=alpha, beta=beta)


def _product_rules(shapes: tuple[Sequence[int], ...], epilogue: bool) -> Iterator[Rule]:  # noqa: FBT001 — see Rules
    a, b = (len(shape) for shape in shapes[:2])
    batch = max(a - 2, b - 2, 0)
    yield from _batch_rules(shapes, batch)
    rows, columns = a > 1, b > 1
    bias = shapes[2:]
    if rows:
        yield Shard(batch), (Shard(a - 2), _R, *(_along(x, b, rows=True) for x in bias))
    if columns:
        yield Shard(batch + rows), (_R, Shard(b - 1), *(_along(x, b, rows=False) for x in bias))
    if not epilogue and not bias:
        yield from _sum_rules(shapes, epilogue)


def _sum_rules(shapes: tuple[Sequence[int], ...], _epilogue: bool) -> Iterator[Rule]:  # noqa: FBT001 — see Rules
    a, b = (len(shape) for shape in shapes[:2])
    yield _P, (Shard(a - 1), Shard(max(b - 2, 0)))
    yield _P, (_P, _R)
    yield _P, (_R, _P)


def _transpose_rules(shapes: tuple[Sequence[int], ...], _epilogue: bool) -> Iterator[Rule]:  # noqa: FBT001 — see Rules
    ranks = [len(shape) for shape in shapes]
    rank = max(ranks)
    yield from _batch_rules(shapes, rank - 2)
    # Dimensions of x and y, counted from the end: a row of x is a column of y and of the result.
    for of_x, others in ((1, 2), (2, 1)):
        yield Shard(rank - others), (Shard(ranks[0] - of_x), *(Shard(one - others) for one in ranks[1:]))
    yield _P, (_P,) * len(shapes)


def _batch_rules(shapes: tuple[Sequence[int], ...], batch: int) -> Iterator[Rule]:
    """Yield shards of each batch dimension, for operands that are not broadcast over it."""
    for dim in range(batch):
        owns = [(shape, dim - batch + len(shape) - 2) for shape in shapes[:2]]
        yield (
            Shard(dim),
            (*(Shard(own) if own >= 0 and x[own] != 1 else _R for x, own in owns), *(_R,) * len(shapes[2:])),
        )


def _along(bias: Sequence[int], b_rank: int, *, rows: bool) -> Any:
    """Return the placement of a bias for a result sharded in rows, or in columns."""
    column = b_rank == 1 if len(bias) == 1 else bias[1] == 1
    dim = 0 if column else len(bias) - 1
    return Shard(dim) if rows == column and bias[dim] != 1 else _R


_RULES: dict[str, Rules] = {
    "inner": _sum_rules,
    "matmul": _product_rules,
    "transpose": _transpose_rules,
    "transpose_add": _transpose_rules,
}


def _rules(name: str, shapes: tuple[Sequence[int], ...], *, epilogue: bool) -> list[Rule]:
    return [(_R, (_R,) * len(shapes)), *_RULES[name](shapes, epilogue)]


def _result(call: tuple[Any, ...], *, epilogue: bool = False) -> list[Any]:
    """Return the placements of a call's result for its operator's name and operands. Raises if no rule applies."""
    name, *operands = call
    for argument, x in zip(OPERATORS[name].tensors, operands, strict=False):
        if not isinstance(x, DTensor) or x.device_mesh != operands[0].device_mesh:
            raise ArgumentError(
                argument=argument,
                got="a DTensor of another mesh" if isinstance(x, DTensor) else f"{type(x).__name__}, beside a DTensor",
                wanted="DTensors of one device mesh",
                fix=f"Pass torch.distributed.tensor.distribute_tensor({argument}, mesh, [Replicate()]).",
            )
    shapes = tuple(tuple(x.shape) for x in operands)
    placed = zip(*(x.placements for x in operands), strict=True)
    # Compilers trace through a cache, and warn about it.
    decide = _placed if torch.compiler.is_compiling() else _known
    return [decide(name, shapes, one, epilogue=epilogue) for one in placed]


def _placed(name: str, shapes: tuple[Sequence[int], ...], given: tuple[Any, ...], *, epilogue: bool) -> Any:
    """Return the result's placement on one dimension of a mesh for these placements of the operands."""
    rules = _rules(name, shapes, epilogue=epilogue)
    for result, wanted in rules:
        if wanted == given:
            return result
    for result, wanted in rules:
        if all(want == has or (has == _R and want.is_shard()) for want, has in zip(wanted, given, strict=True)):
            return result
    raise _refused(name, given, [wanted for _, wanted in rules])


_known = lru_cache(maxsize=1024)(_placed)


def _refused(name: str, given: tuple[Any, ...], rules: list[tuple[Any, ...]]) -> ArgumentError:
    """Return the error, with the placements that go with the first operand's, or else with all possible ones."""
    names = OPERATORS[name].tensors[: len(given)]
    fitting = [wanted for wanted in rules if wanted[0] == given[0]] or rules
    options = list(dict.fromkeys(_shown(names, wanted) for wanted in fitting))
    # torch cannot turn other placements into partial sums.
    possible = [w for rows in (fitting, rules) for w in rows if not any(map(_becomes_partial, w, given))]
    nearest = max(possible, key=lambda wanted: sum(want == has for want, has in zip(wanted, given, strict=True)))
    argument, want = next(
        (called, want) for called, want, has in zip(names, nearest, given, strict=True) if want != has
    )
    return ArgumentError(
        argument=argument,
        got=f"placements {_shown(names, given)} for {name}",
        wanted=", or ".join(options),
        fix=f"Distribute {argument} so, or pass {argument}.redistribute(placements=[{_text(want)}]), which moves it "
        "between ranks.",
    )


def _shown(names: Sequence[str], placements: tuple[Any, ...]) -> str:
    return " with ".join(f"{name} {_text(one)}" for name, one in zip(names, placements, strict=True))


def _text(placement: Any) -> str:
    """Format a placement as a caller writes it; torch's own classes have no such form."""
    if type(placement) is Partial:
        return "Partial()" if placement == _P else f'Partial("{placement.reduce_op}")'
    return f"Shard({placement.dim})" if type(placement) is Shard else repr(placement)


def _becomes_partial(want: Any, has: Any) -> bool:
    return bool(want != has and want.is_partial())


def _register(name: str) -> None:
    operator = FUNCTIONAL[name]

    def sharding(*specs: Any, **keywords: Any) -> list[tuple[list[Any], list[Any]]]:
        present = [one for one in specs if one is not None]
        shapes = tuple(tuple(one.shape) for one in present)
        epilogue = keywords.get("activation") is not None or len(present) > 2
        for given in zip(*(one.placements for one in present), strict=True):
            _placed(name, shapes, given, epilogue=epilogue)  # raises
        missing = [None] * (len(specs) - len(present))
        return [([result], [*wanted, *missing]) for result, wanted in _rules(name, shapes, epilogue=epilogue)]

    register_sharding(operator)(sharding)
    # torch's register_sharding distinguishes cached answers only by integer keywords.
    schemas = DTensor._op_dispatcher.sharding_propagator.op_to_schema_info  # noqa: SLF001 — torch has no public way
    schemas[operator].static_kwargkey = list(OPERATORS[name].decisive) or None


for _name in OPERATORS:
    _register(_name)
gradients.PRODUCTS_OF[DTensor] = _gradient
