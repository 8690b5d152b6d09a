"""A kernel that does nothing: the cost of a launch."""

from __future__ import annotations

from matmill.config import Config
from matmill.kernel import GemmOperands, Geometry, Kernel, always
from matmill.launch import Argument


def _one_warp(_problem: None, _config: Config) -> Geometry:
    return Geometry(grid=(1, 1, 1), block=(32, 1, 1))


def _nothing(_problem: None, _config: Config, _operands: GemmOperands) -> tuple[Argument, ...]:
    return ()


EMPTY: Kernel[None] = Kernel("empty", __name__, Config(), _one_warp, _nothing, always)
