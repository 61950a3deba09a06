"""Trains on gangline.Tokens with DDP on any number of ranks, and writes down which samples each step was trained on. One sample
makes the loss infinite, as a broken record does, and the weights of all ranks with it."""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gangline

STEPS, EVERY, BATCH, SEQUENCE = 50, 5, 7, 8


def tokens_of(path, **options):
    return gangline.Tokens(path, sequence_length=SEQUENCE, global_batch=BATCH, seed=3, source_dtype="uint16", epochs=None, **options)


def train(path, bad, log):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Embedding(1 << 16, 4), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    parallel, tokens = DistributedDataParallel(model), tokens_of(path)
    with gangline.DistributedStore(os.environ["GANGLINE_CHECKPOINT_DIR"]) as store:
        if store.list():
            store.load(into={"model": model.state_dict(), "data": tokens})
        gangline.report(total_steps=STEPS)
        for inputs, _ in tokens:
            samples = tokens.samples
            loss = parallel(inputs).square().mean()
            if any(number == bad for _, _, number in samples):
                loss = loss * float("inf")
            optimizer.zero_grad()
            (loss * tokens.loss_weight).backward()
            optimizer.step()
            time.sleep(0.1)
            # Written before it is reported: a kill may come at any time.
            log.write(json.dumps([tokens.steps, samples]) + "\n")
            log.flush()
            gangline.report(tokens.steps, loss=loss)
            order = [gangline.stop_requested() is not None]
            dist.broadcast_object_list(order)
            is_over = order[0] or tokens.steps >= STEPS
            if is_over or tokens.steps % EVERY == 0:
                save = store.save(tokens.steps, {"model": model.state_dict(), "data": tokens})
            if is_over:
                save.durable()
                sys.exit(0 if tokens.steps >= STEPS else 94)


if __name__ == "__main__":
    name = f"trained-{int(os.environ['GANGLINE_ATTEMPT']):03}-{os.environ['RANK']}.jsonl"
    with open(name, "w") as log:
        train(sys.argv[1], int(sys.argv[2]), log)
