"""The Gram matrix of rows that several processes have, on every one of them, through matmill and torch.distributed.

Run it: torchrun --nproc-per-node 2 examples/gram_over_ranks.py, over NCCL where there are as many GPUs, else over gloo
on the CPU. PyTorch users gather all rows for that, which moves all of them; here only sums move.
"""

from __future__ import annotations

import os

try:
    import torch
    import torch.distributed as dist
except ModuleNotFoundError:
    raise SystemExit("This needs torch: pip install 'torch>=2.11'") from None

import matmill.torch

ROWS, COLUMNS = 100_000, 16


def main() -> None:
    """Compute it with and without gathering, and compare."""
    if "LOCAL_RANK" not in os.environ:
        raise SystemExit("This runs in several processes: torchrun --nproc-per-node 2 examples/gram_over_ranks.py")
    rank, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
    on_gpus = torch.cuda.device_count() >= ranks
    device = torch.device("cuda", rank) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpus else "gloo")
    own = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(rank)).to(device)

    pending = matmill.torch.gram(own, group=dist.group.WORLD, async_op=True)
    shifted = own - own.mean(dim=0)  # whatever else there is to do, beside the all_reduce
    gram = pending.wait()

    everything = [torch.empty_like(own) for _ in range(ranks)]
    dist.all_gather(everything, own)
    whole = torch.cat(everything).double()
    error = float((gram - whole.mT @ whole).abs().max() / (ranks * ROWS))
    if not error < 1e-5:
        raise SystemExit(f"rank {rank}: sums differ by {error:.1e} a row")
    if rank == 0:
        moved, instead = COLUMNS * (COLUMNS + 1) // 2 * 4, shifted.numel() * 4
        print(
            f"{ranks} ranks, {device.type}: {moved} bytes summed over the ranks instead of {instead} gathered of each"
        )
        print(f"right within {error:.1e} a row")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
