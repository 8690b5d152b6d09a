"""Cases of FSDP2 around linear layers of matmill's: parameters after steps are those of the same layers of torch's.

Each case trains one model on two ranks, or with tensor parallelism on four, each rank with rows of its own. What it is
compared with is trained on one rank with all rows, by ``torch.nn.functional.linear``. FSDP resizes the storages of
whatever a layer reads or keeps, which a tensor whose memory belongs to NumPy does not allow.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import gelu, linear, mse_loss
from torch.utils.checkpoint import checkpoint

import matmill.torch as mt
from support.ranks import Ranks

Wrap = Callable[[Any], None]

_FEATURES, _HIDDEN, _ROWS, _STEPS = 6, 10, 5, 2


class _Layer(torch.nn.Linear):  # type: ignore[misc] # torch may be absent, and is Any then
    """A linear layer of matmill's, or of torch's to compare with."""

    ours = True

    def forward(self, x: Any) -> Any:
        return mt.linear(x, self.weight, self.bias) if self.ours else linear(x, self.weight, self.bias)


class _Adapted(_Layer):
    """A frozen linear layer and a product of two narrow ones beside it, as LoRA has it."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__(features, outputs)
        self.down, self.up = _Layer(features, 2, bias=False), _Layer(2, outputs, bias=False)
        self.weight.requires_grad_(requires_grad=False)
        self.bias.requires_grad_(requires_grad=False)

    def forward(self, x: Any) -> Any:
        return super().forward(x) + self.up(self.down(x))


class _Block(torch.nn.Module):  # type: ignore[misc] # torch may be absent, and is Any then
    """Two layers beside their input, kept for the gradients or computed anew."""

    def __init__(self, layer: type[_Layer], *, anew: bool) -> None:
        super().__init__()
        self.wide, self.narrow = layer(_FEATURES, _HIDDEN), layer(_HIDDEN, _FEATURES)
        self._anew = anew

    def forward(self, x: Any) -> Any:
        return x + (checkpoint(self._layers, x, use_reentrant=False) if self._anew else self._layers(x))

    def _layers(self, x: Any) -> Any:
        return self.narrow(gelu(self.wide(x)))


def _train(model: Any, x: Any, y: Any) -> None:
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.5)
    for _ in range(_STEPS):
        mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def _whole(x: Any) -> Any:
    return x.full_tensor() if isinstance(x, DTensor) else x


def _same_as_torch(
    ranks: Ranks,
    wrap: Wrap,
    *,
    layer: type[_Layer] = _Layer,
    anew: bool = False,
    at: int | None = None,
    near: float = 1e-5,
) -> None:
    """Train the wrapped model on rows of part ``at`` of two, the plain one on all, and compare their parameters."""
    seeded = torch.Generator().manual_seed(7)
    torch.manual_seed(7)
    ours = torch.nn.Sequential(*(_Block(layer, anew=anew) for _ in range(2))).to(ranks.device)
    theirs = deepcopy(ours)
    for module in theirs.modules():
        if isinstance(module, _Layer):
            module.ours = False
    x, y = (torch.randn(2, _ROWS, _FEATURES, generator=seeded).to(ranks.device) for _ in range(2))
    _train(theirs, x.flatten(0, 1), y.flatten(0, 1))
    wrap(ours)
    part = ranks.rank if at is None else at
    _train(ours, x[part], y[part])
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(_whole(mine), other, rtol=near, atol=near), name


def _sharded(mesh: Any, **keywords: Any) -> Wrap:
    def wrap(model: Any) -> None:
        for block in model:
            fully_shard(block, mesh=mesh, **keywords)
        fully_shard(model, mesh=mesh, **keywords)

    return wrap


def _on_two(ranks: Ranks, compiled: Wrap | None = None, policy: Any = None, **options: Any) -> None:
    """Shard over two ranks of any number: more of them would shard the same. All ranks make the mesh."""
    mesh = DeviceMesh(ranks.device.type, torch.arange(2))
    sharded = _sharded(mesh) if policy is None else _sharded(mesh, mp_policy=policy)

    def wrap(model: Any) -> None:
        if compiled is not None:
            compiled(model)
        sharded(model)

    if ranks.rank < 2:
        _same_as_torch(ranks, wrap, **options)


def fsdp_plain(ranks: Ranks) -> None:
    """Check weights and biases in shards, gathered for each block."""
    _on_two(ranks)


def fsdp_in_mixed_precision(ranks: Ranks) -> None:
    """Check parameters gathered in bfloat16, gradients summed in float32: near what float32 gives."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32)
    _on_two(ranks, policy=policy, near=0.004)


def fsdp_with_adapters(ranks: Ranks) -> None:
    """Check LoRA: frozen parameters and trained ones in one group."""
    _on_two(ranks, layer=_Adapted)


def fsdp_with_checkpointing(ranks: Ranks) -> None:
    """Check activations computed anew while the gradients are."""
    _on_two(ranks, anew=True)


def fsdp_compiled(ranks: Ranks) -> None:
    """Check blocks compiled before they are sharded, as torch's documentation has it."""

    def compiled(model: Any) -> None:
        for block in model:
            block.compile(backend="aot_eager", fullgraph=True)

    _on_two(ranks, compiled)


def fsdp_with_tensor_parallelism(ranks: Ranks) -> None:
    """Check wide layers by columns and narrow ones by rows over one dimension, shards of both over the other."""
    if ranks.world % 2:
        return
    mesh = init_device_mesh(ranks.device.type, (2, ranks.world // 2), mesh_dim_names=("data", "tensor"))
    sharded = _sharded(mesh["data"])

    def wrap(model: Any) -> None:
        for block in model:
            parallelize_module(block, mesh["tensor"], {"wide": ColwiseParallel(), "narrow": RowwiseParallel()})
        sharded(model)

    _same_as_torch(ranks, wrap, at=mesh.get_local_rank("data"))


CASES = (
    fsdp_plain,
    fsdp_in_mixed_precision,
    fsdp_with_adapters,
    fsdp_with_checkpointing,
    fsdp_compiled,
    fsdp_with_tensor_parallelism,
)
