"""The documents that rungs come from."""

from __future__ import annotations

from matmill.kernel import Document

S0 = Document("S0", "Forum post: CUDA matrix multiplication (GeMM) performance optimisation")
S1 = Document("S1", "University slides: CUDA 4, SGEMM continued")
OURS = Document("matmill", "matmill's own")
