"""Filling a matrix on the device; its descriptor is ``common.FILL``."""

from __future__ import annotations
