"""Parts that `gang.play` runs on each rank of a gang: what differs by rank."""

import pathlib
import random
import time

import gangline
import gangline.torch
import numpy
import torch
import torch.distributed as dist


def attempt(act):
    """What came of it, and whether that took as long as ranks wait for each other."""
    started = time.monotonic()
    try:
        act()
        said = "done"
    except gangline.Error as error:
        said = f"{type(error).__name__}: {error}"
    return said if time.monotonic() - started < 60 else f"too late: {said}"


def differ(folder):
    """Saves states that differ by rank, and what not every rank can save: what each rank is told."""
    rank = dist.get_rank()
    weights = {"model": {"weight": torch.arange(6.0)}, "step": 1}
    far_apart = torch.zeros(100_000)
    far_apart += 1e-6 * rank
    states = {
        "value": {**weights, "epoch": {"loss": 0.5 + rank, "at": 3}},
        "tensor": {"model": {"weight": torch.arange(6.0) + rank}},
        "array": {"model": {"weight": numpy.arange(6.0) + rank}},
        "large": {"model": {"weight": far_apart}},
        "kind": {"model": torch.ones(2) if rank else [1, 1]},
        "refused": {**weights, "schedule": print if rank else None},
        "refused on rank 0": {**weights, "schedule": None if rank else print},
        "equal": {**weights, "order": {1: 2, 3: 4} if rank else {3: 4, 1: 2}},
    }
    said = {}
    with gangline.DistributedStore(pathlib.Path(folder, "store"), commit_timeout=120.0) as store:
        for name, state in states.items():
            said[name] = attempt(lambda: store.save(7, state).durable())
        said["metadata"] = attempt(lambda: store.save(8, weights, {"loss": str(rank)}).durable())
        said["number"] = attempt(lambda: store.save(9, weights, {"loss": rank if rank else "0"}).durable())
        said["steps"] = [listed.step for listed in store.list()]
    with gangline.DistributedStore(pathlib.Path(folder, "all"), compare="all") as store:
        one_off = torch.zeros(100_000)
        one_off[16] = rank
        said["one element"] = attempt(lambda: store.save(1, {"w": one_off}).durable())
    said["plugged"] = attempt(lambda: plugged(folder, rank))
    said["compare"] = attempt(lambda: gangline.DistributedStore(folder, compare="some"))
    return said


def plugged(folder, rank):
    """Saves through torch's planners what one rank is refused; what the store said, and not torch of it."""
    import torch.distributed.checkpoint as dcp

    state = {f"of {rank}": print if rank else torch.ones(2)}
    try:
        dcp.save(state, storage_writer=gangline.torch.StorageWriter(pathlib.Path(folder, "plugged"), step=1))
    except dcp.CheckpointException as error:
        raise error.failures[rank][0] from None


def drawn():
    """The next numbers of every generator."""
    return [random.random(), numpy.random.rand(), torch.rand(1).item(), numpy.random.PCG64().random_raw() * 0]


def seed(rank):
    random.seed(rank), numpy.random.seed(rank), torch.manual_seed(rank)


def keep(folder):
    """Saves what is each rank's own: the numbers that its generators draw next."""
    rank = dist.get_rank()
    seed(100 + rank)
    own = numpy.random.default_rng(rank)
    same = torch.Generator().manual_seed(5)
    cursor = {"at": rank, "seen": torch.arange(rank), "rows": numpy.full((2, 2), rank)}
    state = {
        "w": torch.ones(3), "cursor": gangline.PerRank(cursor), "again": {"cursor": gangline.PerRank([rank])},
        "rng": torch.get_rng_state(), "python": random.getstate(), "numpy": numpy.random.get_state(), "own": own.bit_generator.state,
        "same": same.get_state(), "all": gangline.rng_state(),
    }  # fmt: skip
    with gangline.DistributedStore(pathlib.Path(folder, "store")) as store:
        store.save(3, state).durable()
    return {"drawn": drawn(), "own": own.random(), "same": torch.rand(1, generator=same).item()}


def resume(folder):
    """Loads it, by as many ranks or by another number."""
    rank = dist.get_rank()
    seed(7)
    own, same, said = numpy.random.default_rng(), torch.Generator(), {}
    with gangline.DistributedStore(pathlib.Path(folder, "store")) as store:
        said["refused"] = attempt(lambda: store.load())
        into = {"w": torch.zeros(3), "cursor": gangline.PerRank(None), "rng": torch.get_rng_state()}
        state = store.load(into=into, resized=lambda keys, values: {"keys": list(keys), "of": len(values)})
    said["cursor"] = {key: getattr(value, "tolist", lambda value=value: value)() for key, value in state["cursor"].items()} \
        if "at" in state["cursor"] else state["cursor"]  # fmt: skip
    said["again"], said["w"], said["is_in_place"] = state["again"]["cursor"], into["w"].tolist(), state is into
    torch.set_rng_state(state["rng"]), random.setstate(state["python"]), numpy.random.set_state(state["numpy"])
    said["drawn"] = drawn()
    seed(8)
    gangline.set_rng_state(state["all"])
    said["all drawn"] = drawn()
    own.bit_generator.state = state["own"]
    said["own"], said["same"], said["rank"] = own.random(), torch.rand(1, generator=same.set_state(state["same"])).item(), rank
    return said
