"""The publications that rungs are taken from."""

from __future__ import annotations

from matmill.kernel import Document

S0 = Document("S0", "Forum post: CUDA matrix multiplication (GeMM) performance optimisation")
S1 = Document("S1", "University slides: CUDA 4, SGEMM continued")
S2 = Document("S2", "Armbruster: How to write a fast matrix multiplication from scratch with tensor cores (2024)")
S3 = Document("S3", "Lei, Liu, Song: Time cost model and optimal configuration for parallel matrix products (2024)")
S4 = Document("S4", "Article: Optimising a transpose+add operator")
OURS = Document("matmill", "matmill's own")
