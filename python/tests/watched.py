"""A loop that knows nothing of Gangline but one line. Its second rank waits for its data, its first one saves and collects garbage."""

import gc
import itertools
import os
import pathlib
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

import gangline.torch

SEQUENCE = 25


class Slow(IterableDataset):
    def __iter__(self):
        for _ in itertools.count():
            time.sleep(0.08 * dist.get_rank())
            yield torch.zeros(SEQUENCE, dtype=torch.int64)


torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Embedding(64, 8), torch.nn.Linear(8, 8)))
optimizer = torch.optim.AdamW(model.parameters())
gangline.torch.watch(model, optimizer)
# Whatever a training keeps in Python is looked at by each full collection.
kept = [[number] for number in range(200_000 * (1 - dist.get_rank()))]
saved = pathlib.Path(f"saved-{os.environ['RANK']}.pt")
for batch in DataLoader(Slow(), batch_size=2):
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        gc.collect()
        torch.save(torch.zeros(8 << 20), saved)
