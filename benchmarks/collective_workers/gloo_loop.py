"""One worker of ``torch.distributed`` with Gloo, a process.

    python benchmarks/collective_workers/gloo_loop.py RANK WORKERS STORE

STORE is a file where the workers find each other. A line ``COLLECTIVE SIZE`` makes tensors, and
checks a call; a line with a number makes so many calls, after one that all begin together. The
answer to each line is the seconds that it took.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # workers of one host

import torch
import torch.distributed as dist

from collective_workers.cases import check, operand, shapes


def call(collective, x, out, rank, num_workers):
    """A function without arguments that runs the collective once."""

    def permute():
        sent = dist.isend(x, (rank + 1) % num_workers)
        dist.recv(out, (rank - 1) % num_workers)
        sent.wait()

    return {
        "all_reduce": lambda: dist.all_reduce(out),  # in place
        "all_gather": lambda: dist.all_gather_into_tensor(out, x),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(out, x),
        "all_to_all": lambda: dist.all_to_all_single(out, x),
        "permute": permute,
    }[collective]


def main():
    """Answers requests until there are no more."""
    rank, num_workers, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    warnings.simplefilter("ignore", FutureWarning)  # names that later versions change
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=num_workers
    )
    run = x = out = None
    for line in sys.stdin:
        request = line.split()
        start = time.perf_counter()
        if len(request) == 1:
            run()
            start = time.perf_counter()
            for _ in range(int(request[0])):
                run()
        else:
            run = x = out = None
            collective, size = request[0], int(request[1])
            x = torch.from_numpy(operand(collective, size, num_workers, rank))
            out = torch.full((shapes(collective, size, num_workers)[1],), -1.0)
            if collective == "all_reduce":
                out.copy_(x)
            run = call(collective, x, out, rank, num_workers)
            run()
            check(out.numpy(), collective, size, num_workers, rank)
            out.zero_()  # an all-reduce in place would grow without end
        print(time.perf_counter() - start, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
