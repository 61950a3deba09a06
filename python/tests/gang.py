"""Gangs of real processes over gloo: `play` runs a part of this file on each rank of one."""

import json
import os
import pathlib
import subprocess
import sys

import gangline
import per_rank
import torch
import torch.distributed as dist

LIMIT_SECONDS = 240


def play(part, world_size, folder, expect=0, **arguments):
    """Runs the function `part` below on every rank; what it returned on each. All ranks have to end with status `expect`."""
    results = pathlib.Path(folder, f"gang-{part}-{world_size}-{os.urandom(4).hex()}")
    results.mkdir()
    command = [sys.executable, "-W", "ignore", __file__, part, str(results), str(world_size), str(folder), json.dumps(arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LIMIT_SECONDS)
    assert json.loads(ended.stdout or "0") == [expect] * world_size, ended.stderr
    return [json.loads((results / str(rank)).read_text()) if not expect else None for rank in range(world_size)]


def start(part, results, world_size, folder, arguments):
    """Forks the ranks of a gang, which torch is imported for only once; their statuses."""
    ranks = []
    for rank in range(world_size):
        ranks.append(os.fork())
        if not ranks[-1]:
            meeting = f"file://{results}/meeting"
            dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world_size)
            result = (globals().get(part) or getattr(per_rank, part))(folder, **arguments)
            dist.destroy_process_group()
            pathlib.Path(results, str(rank)).write_text(json.dumps(result))
            sys.exit()
    return [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]


def model():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(10, 23), torch.nn.GELU(), torch.nn.LayerNorm(23), torch.nn.Linear(23, 5))


def read_tokens(folder, path, steps):
    """Reads batches from where the last gang stopped, and saves there; the inputs of each step's rows."""
    tokens = gangline.Tokens(path, epochs=None, sequence_length=8, global_batch=7, seed=3, source_dtype="uint16")
    with gangline.DistributedStore(pathlib.Path(folder, "store")) as store:
        if store.list():
            store.load(into={"data": tokens})
        batches = [tokens.next_batch().inputs.tolist() for _ in range(steps)]
        store.save(tokens.steps, {"data": tokens}).durable()
    return batches


def train(folder, steps, kill_at=None):
    """Trains under FSDP2 from the newest checkpoint on, saving every third step; the loss of each step."""
    from torch.distributed.checkpoint.state_dict import set_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    net = model()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in (net[0], net[3]):
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    store = gangline.DistributedStore(pathlib.Path(folder, "store"))
    first, losses = 0, {}
    if store.list():
        loaded = store.load(into=state_of(net, optimizer, 0))
        set_state_dict(net, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
        first = loaded["step"] + 1
    for step in range(first, steps):
        losses[step] = one_step(net, optimizer, step)
        if step % 3 == 2:
            save = store.save(step, state_of(net, optimizer, step), {"loss": str(losses[step])})
        if step == kill_at:
            save.durable()  # of an earlier step
            one_step(net, optimizer, step + 1)
            store.save(step + 1, state_of(net, optimizer, step + 1))
            os.kill(os.getpid(), 9)
    store.close()
    return losses


def state_of(net, optimizer, step):
    """The state by torch's own helper, which fills in what an optimizer lacks before its first step."""
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model_state, optimizer_state = get_state_dict(net, optimizer)
    return {"model": model_state, "optimizer": optimizer_state, "step": step}


def one_step(net, optimizer, step):
    """A step on this rank's part of a batch that doesn't depend on the number of ranks; the loss of the whole batch."""
    generator = torch.Generator().manual_seed(step)
    inputs, targets = torch.randn(12, 10, generator=generator), torch.randn(12, 5, generator=generator)
    mine = slice(dist.get_rank(), None, dist.get_world_size())
    loss = torch.nn.functional.mse_loss(net(inputs[mine]), targets[mine])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def whole(name, *shape):
    """The tensor of this name, the same on every rank."""
    generator = torch.Generator().manual_seed(sum(name.encode()))
    return torch.randn(shape, generator=generator)


def layouts(cut):
    """Tensors cut in many ways over this gang: `cut(mesh, placements, name, *shape)` makes each."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard

    size = dist.get_world_size()
    line = init_device_mesh("cpu", (size,))
    square = init_device_mesh("cpu", (2, size // 2)) if size % 2 == 0 else init_device_mesh("cpu", (1, size))
    tied = cut(line, [Shard(0)], "tied", 6, 3)
    return {
        "rows": cut(line, [Shard(0)], "rows", 10, 3), "columns": cut(line, [Shard(1)], "columns", 3, 10),
        "few": cut(line, [Shard(0)], "few", 2, 3), "one": cut(line, [Shard(0)], "one", 1),
        "same": cut(line, [Replicate()], "same", 4, 4), "grid": cut(square, [Shard(0), Shard(1)], "grid", 5, 7),
        "twice": cut(square, [Shard(0), Shard(0)], "twice", 9, 2), "hybrid": cut(square, [Replicate(), Shard(0)], "hybrid", 7, 2),
        "none": cut(line, [Shard(0)], "none", 0, 3), "plain": whole("plain", 3, 3), "tied": tied, "tied again": tied,
        "half": cut(line, [Shard(0)], "half", 10, 3).bfloat16(), "complex": cut(line, [Shard(0)], "c", 5, 2).to(torch.complex64),
    }  # fmt: skip


def made(mesh, placements, name, *shape):
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole(name, *shape), mesh, placements)


def empty(mesh, placements, name, *shape):
    from torch.distributed.tensor import zeros

    return zeros(shape, device_mesh=mesh, placements=placements)


def differing(loaded, expected):
    """The names of tensors that aren't equal, wherever they are held."""
    local = lambda tensor: tensor.to_local() if hasattr(tensor, "to_local") else tensor  # noqa: E731
    return [name for name in expected if not torch.equal(local(loaded[name]), local(expected[name]))]


def save(folder):
    with gangline.DistributedStore(pathlib.Path(folder, "cut")) as store:
        state = {**layouts(made), "rank": gangline.PerRank(dist.get_rank()), "notes": [1, "two"]}
        saved = store.save(5, state, {"from": "four"}).durable()
        return {"step": saved.step, "hash": saved.content_hash}


def load(folder):
    """Loads what any gang saved into other cuts: what differs, and values."""
    expected, into = layouts(made), layouts(empty)
    with gangline.DistributedStore(pathlib.Path(folder, "cut")) as store:
        loaded = store.load(into=into, resized=lambda keys, values: [keys, values])
        fresh = store.load(5, resized=lambda keys, values: values)
        return {
            "different": differing(loaded, expected) + differing(fresh, {key: full(value) for key, value in expected.items()}),
            "rank": loaded["rank"], "notes": loaded["notes"], "is_in_place": loaded is into,
            "is_tied": fresh["tied"] is fresh["tied again"],
        }  # fmt: skip


def load_some(folder):
    """Saves two large tensors and loads one, converted: the bytes that this rank read for it. Then what is refused on one rank."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    count = lambda: int(pathlib.Path("/proc/self/io").read_text().split("rchar:")[1].split()[0])  # noqa: E731
    with gangline.DistributedStore(pathlib.Path(folder, "some")) as store:
        store.save(1, {"model": made(mesh, rows(), "w", 1024, 512), "other": made(mesh, rows(), "v", 1024, 512)}).durable()
        into = {"model": empty(mesh, rows(), "w", 1024, 512).bfloat16(), "more": 1}
        before = count()
        loaded = store.load(into=into, cast=True, strict=False)
        read = count() - before
        expected = {"model": made(mesh, rows(), "w", 1024, 512).bfloat16()}
        touched = {"model": empty(mesh, rows(), "w", 1024, 512), "other": torch.zeros(1 + dist.get_rank())}
        touched["other"] = touched["other"] if dist.get_rank() else empty(mesh, rows(), "v", 1024, 512)
        said = attempt(lambda: store.load(into=touched))
        local = touched["model"].to_local() if isinstance(touched["model"], DTensor) else touched["model"]
        return {
            "different": differing(loaded, expected), "read": read, "keys": list(loaded), "missing": list(store.loaded.missing),
            "said": said, "touched": float(local.abs().sum()),
        }  # fmt: skip


def full(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def refuse(folder):
    """Every refusal and disagreement, as text."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    path = pathlib.Path(folder, "refused")
    store = gangline.DistributedStore(path)
    partial = DTensor.from_local(torch.ones(2), mesh, [Partial()])
    said = {"partial": attempt(lambda: store.save(1, {"w": partial}))}
    said["other keys"] = attempt(lambda: store.save(2, {f"w{dist.get_rank()}": torch.ones(1)}).durable())
    said["nothing"] = attempt(lambda: store.load())
    store.save(3, {"w": made(mesh, rows(), "w", 4, 2)}).durable()
    bad = {"w": torch.ones(3) if dist.get_rank() else torch.ones(4, 2)}
    said["one rank's shape"] = attempt(lambda: store.load(into=bad))
    said["lone"] = attempt(lambda: gangline.Reader(store.path).load(into={"w": made(mesh, rows(), "w", 4, 2)}))
    said["a flipped bit"] = fall_back(store, mesh)
    store.close()
    return said


def fall_back(store, mesh):
    """Loads after one byte of one rank's shard of the newest checkpoint changed: the step that all ranks get."""
    for step in (3, 4):
        store.save(step, {"w": made(mesh, rows(), "w", 4, 2), "step": step}).durable()
    if dist.get_rank() == 0:
        last = sorted(pathlib.Path(store.path, "step-0000000004").glob("*.safetensors"))[-1]
        data = bytearray(last.read_bytes())
        data[-1] ^= 1
        last.write_bytes(data)
    dist.barrier()
    return store.load(into={"w": empty(mesh, rows(), "w", 4, 2)})["step"]


def rows():
    from torch.distributed.tensor import Shard

    return [Shard(0)]


def attempt(act):
    try:
        act()
    except gangline.Error as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def checkpoint(folder):
    """torch.distributed.checkpoint through the plug-ins, there and back."""
    import torch.distributed.checkpoint as dcp
    from gangline.torch import StorageWriter

    path = pathlib.Path(folder, "plugged")
    state = {"model": layouts(made), "epoch": 3, "nested": {"list": [1.5, None], "text": "x"}}
    del state["model"]["complex"], state["model"]["tied again"]
    dcp.save(state, storage_writer=StorageWriter(path, step=1))
    state["epoch"] = 4
    dcp.async_save(state, storage_writer=StorageWriter(path, step=2)).result()
    return reload(folder)


def classic(folder):
    """torch.distributed.checkpoint as it comes, to files of its own."""
    import torch.distributed.checkpoint as dcp

    state = {"model": layouts(made), "epoch": 3}
    del state["model"]["none"]
    dcp.save(state, checkpoint_id=pathlib.Path(folder, "classic"))


def reload(folder):
    import torch.distributed.checkpoint as dcp
    from gangline.torch import StorageReader

    expected, into = layouts(made), {"model": layouts(empty), "epoch": 0, "nested": {"list": [0], "text": ""}}
    for tensors in (expected, into["model"]):
        del tensors["complex"], tensors["tied again"]
    dcp.load(into, storage_reader=StorageReader(pathlib.Path(folder, "plugged")))
    return {"different": differing(into["model"], expected), "epoch": into["epoch"], "nested": into["nested"]}


if __name__ == "__main__":
    import torch._dynamo  # noqa: F401  (what ranks would import one by one)
    import torch.distributed.checkpoint.state_dict  # noqa: F401
    import torch.distributed.fsdp  # noqa: F401
    import torch.distributed.tensor  # noqa: F401

    part, results, world_size, folder, arguments = sys.argv[1:]
    print(json.dumps(start(part, results, int(world_size), folder, json.loads(arguments))))
