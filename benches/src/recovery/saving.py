"""A DDP run that saves as often as its saves may cost, for `cargo xtask bench recovery`.

Usage: saving.py LIBRARY FOLDER. LIBRARY is torch (torch.save and a rename, as an unchanged script does) or gangline (its store).
What a save costs is how long the first rank can't go on for it: it is measured at the start, and the steps between two saves are as
few as keep saves within the same share of the time. The lines are those of examples/torch/train.py.
"""

import argparse
import math
import os
import pathlib
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn

# Of the time, for saves. A rule of thumb among those who train: a few per cent.
SHARE = 0.02
STEP_SECONDS = 0.05
WIDTH = 512
# Saves at the start, one a step; the first half of them warm up.
TRIALS = 8


class Torch:
    def __init__(self, folder, is_first):
        self.path = folder / "own.pt"

    def load(self):
        return torch.load(self.path, weights_only=True) if self.path.exists() else None

    def save(self, step, state):
        new = self.path.with_suffix(".new")
        torch.save(state, new)
        os.replace(new, self.path)


class Gangline:
    def __init__(self, folder, is_first):
        import gangline

        path = folder / "store"
        path.mkdir(exist_ok=True)
        self.store = gangline.Store(path) if is_first else gangline.Reader(path)

    def load(self):
        return self.store.load() if self.store.list() else None

    def save(self, step, state):
        self.store.save(step, state)


def batch_of(step, rank):
    generator = torch.Generator().manual_seed(step * 1_000 + rank)
    inputs = torch.randn(16, WIDTH, generator=generator)
    return inputs, inputs.roll(1, dims=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library", choices=["torch", "gangline"])
    parser.add_argument("folder", type=pathlib.Path)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    library = {"torch": Torch, "gangline": Gangline}[args.library](args.folder, rank == 0)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Tanh(), nn.Linear(4 * WIDTH, WIDTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    done = 0
    if saved := library.load():
        done = saved["step"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        print(f"rank {rank} resumed from step {done}", flush=True)
    # Nobody saves before all have looked: they go on from the same step.
    dist.barrier()
    model = nn.parallel.DistributedDataParallel(model)
    costs, every, began = [], 1, time.monotonic()
    for step in range(done + 1, 1_000_000):
        start = time.monotonic()
        inputs, targets = batch_of(step, rank)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(max(0.0, STEP_SECONDS - (time.monotonic() - start)))
        if rank != 0:
            continue
        print(f"step {step} loss {loss.item():.6f}", flush=True)
        if (step - done) % every == 0:
            start = time.monotonic()
            library.save(step, {"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()})
            costs.append(time.monotonic() - start)
        if step - done == TRIALS:
            cost = statistics.median(costs[TRIALS // 2 :])
            every, began = max(1, math.ceil(cost / (SHARE * STEP_SECONDS))), time.monotonic()
            print(f"saves every {every} steps, each takes {cost:.6f} s", flush=True)
        if step - done == 5 * TRIALS:
            print(f"pace {(time.monotonic() - began) / (4 * TRIALS):.6f} s", flush=True)


main()
