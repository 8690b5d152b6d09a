"""Train two blocks of a language model with GPT-2's vocabulary on random tokens, and print what a step takes.

Run it as it is, then with matmill answering torch's products where it is faster:

    python examples/language_model.py
    python -m matmill.torch examples/language_model.py
"""

import argparse
import statistics
import time

import torch
from torch import nn

options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
options.add_argument("--vocabulary", type=int, default=50257)
options.add_argument("--width", type=int, default=768)
options.add_argument("--batch", type=int, default=8, help="sequences of 1024 tokens")
options.add_argument("--steps", type=int, default=300)
given = options.parse_args()

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
tokens = torch.randint(given.vocabulary, (given.batch, 1024), device=device)
model = nn.Sequential(
    nn.Embedding(given.vocabulary, given.width),
    *(nn.TransformerEncoderLayer(given.width, given.width // 64, 4 * given.width, batch_first=True) for _ in range(2)),
    nn.Linear(given.width, given.vocabulary),
).to(device, torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), fused=device == "cuda")

times = []
for _ in range(given.steps):
    start = time.perf_counter()
    logits = model(tokens)
    nn.functional.cross_entropy(logits.view(-1, given.vocabulary), tokens.view(-1)).backward()
    optimizer.step()
    optimizer.zero_grad()
    if device == "cuda":
        torch.cuda.synchronize()
    times.append(time.perf_counter() - start)
print(f"a step takes {1e3 * statistics.median(times[-50:]):.1f} ms on {device}")
