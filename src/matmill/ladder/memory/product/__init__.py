"""The tiled product that every transfer rung times; its descriptor is ``common.PRODUCT``."""

from __future__ import annotations
