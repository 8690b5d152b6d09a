"""PyTorch programs at real sizes, as their users write them: transformers, MLPs, graphs, windows, experts, statistics.

Each builder returns a program: its parameters, and a function that computes the loss of one step. ``small`` programs
have the same layers and few of everything, for tests without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

_F = functional  # whose functions are looked up at every call, so that they may be replaced


@dataclass(frozen=True)
class Program:
    """A program: ``loss`` computes one step's; ``parameters`` are trained, none where there is no gradient."""

    loss: Callable[[], Any]
    parameters: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class Named:
    """A program by its name: what it is, the element type, and how it is built."""

    title: str
    dtype: str
    build: Callable[[str, Any, bool], Program]


class Attention(nn.Module):
    """Self-attention of ``heads`` heads; ``explicit`` multiplies the matrices itself, with an additive bias."""

    def __init__(self, width: int, heads: int, *, causal: bool = False, explicit: bool = False) -> None:
        super().__init__()
        self.heads, self.causal, self.explicit = heads, causal, explicit
        self.inward, self.outward = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        """Return the attended values of (batch, length, width)."""
        batch, length, width = x.shape
        split = self.inward(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        if self.explicit:
            y = torch.softmax(q @ k.mT * (width // self.heads) ** -0.5, -1) @ v
        else:
            y = _F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.outward(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """A transformer's block, with its normalisation before or after each part."""

    def __init__(self, width: int, heads: int, *, after: bool = False, **attention: bool) -> None:
        super().__init__()
        self.attention = Attention(width, heads, **attention)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.after = after

    def forward(self, x: Any) -> Any:
        """Return (batch, length, width)."""
        first, second = self.norms
        if self.after:
            x = first(x + self.attention(x))
            return second(x + self.down(_F.gelu(self.up(x))))
        x = x + self.attention(first(x))
        return x + self.down(_F.gelu(self.up(second(x)), approximate="tanh"))


class LanguageModel(nn.Module):
    """Embeddings, blocks, and a head that shares the embedding's weight."""

    def __init__(self, words: int, length: int, width: int, blocks: Iterable[nn.Module], *, bias: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks, self.norm = nn.Sequential(*blocks), nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=bias)
        self.head.weight = self.words.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Any) -> Any:
        """Return the logits of (batch, length) tokens."""
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


def _language(words: int, *, length: int, batch: int, causal: bool) -> Any:
    """Return the builder of a language model of base size: 12 layers, 12 heads, width 768."""

    def build(device: str, dtype: Any, small: bool) -> Program:  # noqa: FBT001 — one of three of every builder
        sizes = (words // 100, 16, 2, 32, 2, 2) if small else (words, length, batch, 768, 12, 12)
        vocabulary, tokens, rows, wide, number, layers = sizes
        blocks = [Block(wide, number, after=not causal, causal=causal) for _ in range(layers)]
        model = LanguageModel(vocabulary, tokens, wide, blocks, bias=not causal).to(device, dtype)
        text = torch.randint(vocabulary, (rows, tokens), device=device)

        def loss() -> Any:
            return _F.cross_entropy(model(text).flatten(0, 1), text.flatten())

        return Program(loss, list(model.parameters()))

    return build


def _numbers(*shape: int, device: str, dtype: Any) -> Any:
    """Return random numbers; those of float64 are float32's, so that both types run the same program."""
    return torch.randn(shape, device=device, dtype=torch.float32 if dtype is torch.float64 else dtype).to(dtype)


def _wide(dtype: Any) -> Any:
    """Return the type of losses: float32 for 16-bit elements."""
    return torch.promote_types(dtype, torch.float32)


def _mlp(sizes: tuple[int, ...], rows: int) -> Any:
    def build(device: str, dtype: Any, small: bool) -> Program:  # noqa: FBT001 — see _language
        layers: list[nn.Module] = []
        for inward, outward in pairwise(sizes):
            layers += [nn.Linear(inward, outward), nn.ReLU()]
        model = nn.Sequential(*layers[:-1]).to(device, dtype)
        x = _numbers(64 if small else rows, sizes[0], device=device, dtype=dtype)
        return Program(lambda: model(x).to(_wide(dtype)).square().mean(), list(model.parameters()))

    return build


def _vision(device: str, dtype: Any, small: bool) -> Program:  # noqa: FBT001 — see _language
    width, heads, depth, batch, side = (32, 2, 2, 2, 32) if small else (768, 12, 12, 64, 224)
    patches, head = nn.Conv2d(3, width, 16, 16), nn.Linear(width, 1000)
    tokens = (side // 16) ** 2 + 1
    first, places = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.randn(1, tokens, width) * 0.02)
    model = nn.ModuleList([patches, head, nn.Sequential(*(Block(width, heads) for _ in range(depth)))])
    model.to(device, dtype)
    first, places = (nn.Parameter(x.detach().to(device, dtype)) for x in (first, places))
    images = torch.randn(batch, 3, side, side, device=device, dtype=dtype)
    labels = torch.randint(1000, (batch,), device=device)

    def loss() -> Any:
        x = patches(images).flatten(2).mT
        x = torch.cat([first.expand(batch, -1, -1), x], 1) + places
        return _F.cross_entropy(head(model[2](x)[:, 0]).float(), labels)

    return Program(loss, [*model.parameters(), first, places])


class WindowBlock(nn.Module):
    """Attention inside of windows of 7 x 7 patches, then an MLP, as in Swin."""

    def __init__(self, width: int, heads: int, side: int) -> None:
        super().__init__()
        self.block, self.side = Block(width, heads, explicit=True), side

    def forward(self, x: Any) -> Any:
        """Return (batch, side * side, width)."""
        batch, _length, width = x.shape
        count = self.side // 7
        windows = x.view(batch, count, 7, count, 7, width).transpose(2, 3).reshape(-1, 49, width)
        windows = self.block(windows).view(batch, count, count, 7, 7, width)
        return windows.transpose(2, 3).reshape(x.shape)


class Merge(nn.Module):
    """Merge 2 x 2 patches into one of twice the width."""

    def __init__(self, width: int, side: int) -> None:
        super().__init__()
        self.norm, self.reduce, self.side = nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, bias=False), side

    def forward(self, x: Any) -> Any:
        """Return (batch, side * side / 4, 2 * width)."""
        batch, _length, width = x.shape
        half = self.side // 2
        pairs = x.view(batch, half, 2, half, 2, width).permute(0, 1, 3, 2, 4, 5)
        return self.reduce(self.norm(pairs.reshape(batch, half * half, 4 * width)))


def _windows(device: str, dtype: Any, small: bool) -> Program:  # noqa: FBT001 — see _language
    width, batch, depths = (24, 1, (1, 1)) if small else (96, 64, (2, 2, 6, 2))
    side = 7 * 2 ** (len(depths) - 1)
    layers: list[nn.Module] = []
    for stage, depth in enumerate(depths):
        wide, own = width << stage, side >> stage
        layers += [WindowBlock(wide, 3 << stage, own) for _ in range(depth)]
        layers += [Merge(wide, own)] if stage + 1 < len(depths) else []
    patches, head = nn.Conv2d(3, width, 4, 4), nn.Linear(width << (len(depths) - 1), 1000)
    model = nn.ModuleList([patches, nn.Sequential(*layers), head]).to(device, dtype)
    images = torch.randn(batch, 3, 4 * side, 4 * side, device=device, dtype=dtype)
    labels = torch.randint(1000, (batch,), device=device)

    def loss() -> Any:
        x = patches(images).flatten(2).mT
        return _F.cross_entropy(head(model[1](x).mean(1)).float(), labels)

    return Program(loss, list(model.parameters()))


class Adapted(nn.Module):
    """A frozen linear layer with a trained correction of low rank (LoRA)."""

    def __init__(self, inward: int, outward: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(inward, outward, bias=False).requires_grad_(requires_grad=False)
        self.down, self.up = nn.Linear(inward, rank, bias=False), nn.Linear(rank, outward, bias=False)

    def forward(self, x: Any) -> Any:
        """Return (..., outward)."""
        return self.base(x) + self.up(self.down(x))


class AdaptedBlock(nn.Module):
    """A block of Llama's kind: RMS norms, attention, a gated MLP; every linear layer is adapted."""

    def __init__(self, width: int, heads: int, hidden: int, rank: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (Adapted(width, width, rank) for _ in range(4))
        self.gate, self.up = (Adapted(width, hidden, rank) for _ in range(2))
        self.down = Adapted(hidden, width, rank)
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])

    def forward(self, x: Any) -> Any:
        """Return (batch, length, width)."""
        first, second = self.norms
        y = first(x)
        q, k, v = (layer(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        x = x + self.o(_F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        y = second(x)
        return x + self.down(_F.silu(self.gate(y)) * self.up(y))


def _adapted(device: str, dtype: Any, small: bool) -> Program:  # noqa: FBT001 — see _language
    width, heads, hidden, depth, batch, length = (32, 2, 48, 1, 2, 8) if small else (2048, 16, 5632, 4, 4, 1024)
    model = nn.Sequential(*(AdaptedBlock(width, heads, hidden, 16) for _ in range(depth))).to(device, dtype)
    x = torch.randn(batch, length, width, device=device, dtype=dtype)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return Program(lambda: model(x).float().square().mean(), trained)


def _experts(device: str, dtype: Any, small: bool) -> Program:  # noqa: FBT001 — see _language
    tokens, width, hidden, count = (64, 16, 24, 4) if small else (16384, 1024, 1408, 64)
    router = nn.Linear(width, count, bias=False).to(device, dtype)
    up, down = (
        nn.Parameter(torch.randn(*shape, device=device, dtype=dtype) * 0.02)
        for shape in ((count, width, hidden), (count, hidden, width))
    )
    x = torch.randn(tokens, width, device=device, dtype=dtype)
    places = tokens * 2 // count

    def loss() -> Any:
        chances = torch.softmax(router(x).float(), -1)
        weights, chosen = chances.mT.topk(places, -1)  # experts choose their tokens
        inside = _F.silu(torch.bmm(x[chosen], up))
        result = torch.bmm(inside, down) * weights.unsqueeze(-1).to(dtype)
        return torch.zeros_like(x).index_add(0, chosen.flatten(), result.flatten(0, 1)).float().square().mean()

    return Program(loss, [router.weight, up, down])


def _graph(device: str, dtype: Any, small: bool) -> Program:  # noqa: FBT001 — see _language
    nodes, edges = (200, 900) if small else (169343, 1166243)
    ends = torch.randint(nodes, (2, edges), device=device)
    layers = nn.ModuleList([nn.Linear(128, 256), nn.Linear(256, 256), nn.Linear(256, 40)]).to(device, dtype)
    x = _numbers(nodes, 128, device=device, dtype=dtype)
    labels = torch.randint(40, (nodes,), device=device)

    def loss() -> Any:
        y = x
        for layer in layers:
            y = layer(y)
            y = y.index_add(0, ends[1], y[ends[0]] * 0.1)
            y = y if layer is layers[-1] else _F.relu(y)
        return _F.cross_entropy(y, labels)

    return Program(loss, list(layers.parameters()))


def _protein(device: str, dtype: Any, small: bool) -> Program:  # noqa: FBT001 — see _language
    width, heads, depth, batch, length = (32, 2, 2, 2, 15) if small else (640, 20, 10, 4, 1023)
    model = nn.Sequential(*(Block(width, heads, explicit=True) for _ in range(depth)), nn.Linear(width, 33))
    model.to(device, dtype)
    x = torch.randn(batch, length, width, device=device, dtype=dtype)
    labels = torch.randint(33, (batch * length,), device=device)
    return Program(lambda: _F.cross_entropy(model(x).flatten(0, 1).float(), labels), list(model.parameters()))


def _statistics(device: str, dtype: Any, small: bool) -> Program:  # noqa: FBT001 — see _language
    samples, features, centres = (500, 8, 5) if small else (1_000_000, 64, 100)
    x = _numbers(samples, features, device=device, dtype=dtype)
    y = x @ _numbers(features, 3, device=device, dtype=dtype)
    start = x[:centres].clone()

    def loss() -> Any:
        mean = x.mean(0)
        covariance = x.mT @ x / samples - mean[:, None] * mean  # principal components
        axes = torch.linalg.eigh(covariance).eigenvectors
        solved = torch.linalg.solve(x.mT @ x, x.mT @ y)  # least squares
        distances = start.square().sum(1) - 2 * (x @ start.mT)  # one step of k-means
        nearest = distances.argmin(1)
        moved = torch.zeros_like(start).index_add(0, nearest, x)
        return (x @ axes[:, -8:]).abs().mean() + (x @ solved - y).square().mean() + moved.abs().mean()

    return Program(loss)


PROGRAMS: dict[str, Named] = {
    "gpt2": Named(
        "GPT-2 small, vocabulary 50257, 8 x 1024",
        "bfloat16",
        _language(50257, length=1024, batch=8, causal=True),
    ),
    "bert": Named(
        "BERT base, vocabulary 30522, 32 x 128", "float16", _language(30522, length=128, batch=32, causal=False)
    ),
    "mlp479": Named("MLP 479-1024-1024-512-256-1, 32768 rows", "float16", _mlp((479, 1024, 1024, 512, 256, 1), 32768)),
    "mlp63": Named(
        "MLP 63-256x4-319-256-3, 262144 rows", "float16", _mlp((63, 256, 256, 256, 256, 319, 256, 3), 262144)
    ),
    "mlp1201": Named("MLP 1201-777-333-10, 16384 rows", "float32", _mlp((1201, 777, 333, 10), 16384)),
    "vit": Named("ViT-B/16, 64 images, 197 tokens", "bfloat16", _vision),
    "swin": Named("Swin-T, 64 images, windows of 49", "float16", _windows),
    "whisper": Named(
        "Decoder with Whisper small's head of 51865, 8 x 448",
        "float16",
        _language(51865, length=448, batch=8, causal=True),
    ),
    "lora": Named("Four Llama-like blocks with LoRA of rank 16, 4 x 1024", "bfloat16", _adapted),
    "experts": Named("Mixture of 64 experts with its router, 16384 tokens", "bfloat16", _experts),
    "graph": Named("Graph network 128-256-256-40, 169343 nodes", "float32", _graph),
    "protein": Named("Protein transformer, 4 x 1023", "float16", _protein),
    "statistics": Named("PCA, least squares and k-means, 1e6 x 64", "float32", _statistics),
    "statistics64": Named("The same in float64", "float64", _statistics),
}


def build(name: str, device: str, *, small: bool = False, dtype: str | None = None) -> Program:
    """Return a program; the same one at every call, and for float32 programs in float64 too.

    >>> program = build("mlp479", "cpu", small=True)
    >>> bool(program.loss() > 0), len(program.parameters)
    (True, 10)
    """
    torch.manual_seed(0)
    named = PROGRAMS[name]
    return named.build(device, getattr(torch, dtype or named.dtype), small)
