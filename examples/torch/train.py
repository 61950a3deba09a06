"""A small PyTorch run that knows nothing of Gangline: DDP or FSDP over gloo, on processors, with checkpoints of its own.

It runs under torchrun and under `gangline submit` alike:

    torchrun --nproc-per-node 2 examples/torch/train.py --checkpoint /tmp/run.pt
    run: python examples/torch/train.py --checkpoint run.pt             # one process a rank
    run: torchrun --nproc-per-node 2 examples/torch/train.py ...        # with `launch: node`
"""

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn


def model_of(width: int) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(width, 4 * width), nn.Tanh(), nn.Linear(4 * width, width))


def batch_of(step: int, rank: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What a rank learns from in a step: the same whenever it is asked for."""
    generator = torch.Generator().manual_seed(step * 1_000 + rank)
    inputs = torch.randn(16, width, generator=generator)
    return inputs, inputs.roll(1, dims=1)


def whole(state: dict, is_sharded: bool) -> dict:
    """A state dict without shards: gathering is every rank's business."""
    full = lambda value: value.full_tensor() if hasattr(value, "full_tensor") else value  # noqa: E731
    return {name: full(value) for name, value in state.items()} if is_sharded else state


def save(path: str, step: int, model: nn.Module, is_sharded: bool) -> None:
    state = whole(model.state_dict(), is_sharded)
    if dist.get_rank() == 0:
        torch.save({"step": step, "model": state}, path + ".new")
        os.replace(path + ".new", path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--step-time", type=float, default=0.0, help="seconds a step takes at least")
    parser.add_argument("--checkpoint", default="checkpoint.pt")
    parser.add_argument("--fsdp", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = model_of(args.width)
    done = 0
    if os.path.exists(args.checkpoint):
        saved = torch.load(args.checkpoint, weights_only=True)
        done = saved["step"]
        model.load_state_dict(saved["model"])
        print(f"rank {rank} resumed from step {done}", flush=True)
    if args.fsdp:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    else:
        model = nn.parallel.DistributedDataParallel(model)
    inner = model if args.fsdp else model.module
    # Without state of its own, so that a resumed run does to the bit what an undisturbed one does.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(done + 1, args.steps + 1):
        began = time.monotonic()
        inputs, targets = batch_of(step, rank, args.width)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(max(0.0, args.step_time - (time.monotonic() - began)))
        if rank == 0:
            print(f"step {step} loss {loss.item():.6f}", flush=True)
        if step % args.every == 0 or step == args.steps:
            save(args.checkpoint, step, inner, args.fsdp)
    if rank == 0:
        print("done", flush=True)
    # Gloo may abort a rank that is still in its last collective when another one closes its connections.
    dist.barrier()
    dist.destroy_process_group()
    # A thread of gloo may still hold a tensor of the last collective; if it lets go of it while the interpreter shuts
    # down, PyTorch aborts ("terminate called without an active exception", pytorch/pytorch#179291). So there is no shutdown:
    # all that is to be kept must be saved before this.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
