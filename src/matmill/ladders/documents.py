"""The publications that rungs are taken from; docs/sources.md says what each one describes."""

from __future__ import annotations

from matmill.kernel import Document

FORUM = Document("forum post", "CUDA matrix multiplication (GeMM) performance optimisation")
SLIDES = Document("slides", "University slides: CUDA 4, SGEMM continued")
BLOG = Document(
    "blog",
    "Armbruster: How to write a fast matrix multiplication from scratch with tensor cores (2024)",
    "https://alexarmbr.github.io/2024/08/10/How-To-Write-A-Fast-Matrix-Multiplication-From-Scratch-With-Tensor-Cores.html",
)
PAPER = Document(
    "paper",
    "Lei, Liu, Song: Time cost model and optimal configuration for parallel matrix products (2024)",
    "https://www.jsjkx.com/EN/10.11896/jsjkx.230300200",
)
ARTICLE = Document("article", "Optimising a transpose+add operator")
OURS = Document("matmill", "matmill's own")
