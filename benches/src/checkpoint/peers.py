"""What a checkpoint library needs for real training state, for `cargo xtask bench checkpoint`.

Usage: peers.py LIBRARY CHECKPOINT COPIES FOLDER. Saves the state of CHECKPOINT (from training_state.py), so many times over,
three times: the second save is measured, as in a run, where buffers are kept if the library keeps them; the third is made
beside the computing of a step. Then drops the second from the page cache, loads it, and compares every byte. A line of the output
is a column and its figure: `state` (bytes); `wall` (seconds until all is synced), `cpu` (of all threads and children), `blocked`
(until the state may change) and `bytes` (on disk) of the save; `held` (seconds that a save and the computing of one step take
longer than that computing alone); `load` and `load-cpu` of the load from the disk, `warm` of the same load once more, when the
page cache has what it reads. What is of the save is left out for a library that only loads.
"""

import mmap
import os
import pathlib
import resource
import shutil
import signal
import statistics
import sys
import time
import warnings

import numpy
import torch
import torch.distributed.checkpoint as dcp

# No library takes longer than this on a working disk.
SECONDS_MAX = 500
PAGE = 4096
# Read at once to have a file in the page cache.
WARM_BYTES = 8 << 20
# A step's forward and backward pass, on all cores: matrix products of this size for about so many seconds.
STEP_SIZE, STEP_SECONDS = 1024, 0.5
STEP_ROUNDS = 3


class Gangline:
    """The store through the Python package."""

    def __init__(self, folder):
        import gangline

        self.store = gangline.Store(folder / "store", keep=None)

    def save(self, state, folder, step):
        return self.store.save(step, state).durable

    def load(self, room, folder, step):
        return self.store.load(step, into=room)

    def where(self, folder, step):
        return folder / f"store/step-{step:010}"


class GanglineOverlap(Gangline):
    """Whose copy is made beside the next forward and backward pass; the optimizer's step waits for it. The optimizer
    has what it has in mixed precision: the fp32 weights and their moments. The bf16 copies are nobody's and copied at once."""

    def prepare(self, state):
        self.optimizer = torch.optim.AdamW(state["master"].values())
        for name, weight in state["master"].items():
            moments = {"exp_avg": state["first"][name], "exp_avg_sq": state["second"][name]}
            self.optimizer.state[weight] = {"step": torch.tensor(1.0), **moments}
        self.before_step()  # the first one imports what it needs

    def save(self, state, folder, step):
        return self.store.save(step, state, stable_until=self.optimizer).durable

    def before_step(self):
        """Without gradients a step changes nothing, and waits all the same."""
        self.optimizer.step()


class GanglineNew(Gangline):
    def load(self, room, folder, step):
        return self.store.load(step)


class GanglineFirst(Gangline):
    """Whose second load finds that it has verified the file."""

    def load(self, room, folder, step):
        return self.store.load(step, into=room, verify="first")


class GanglineBackground(Gangline):
    def load(self, room, folder, step):
        return self.store.load(step, into=room, verify="background")

    def after_load(self):
        self.store.loaded.verified()


class OnGanglinesFile(Gangline):
    """Others that load what the store wrote: one safetensors file."""

    def load(self, room, folder, step):
        [file] = self.where(folder, step).glob("*.safetensors")
        flat = self.read(str(file))
        return {kind: {name: flat[f"{kind}.{name}"] for name in tensors} for kind, tensors in room.items()}


class Runai(OnGanglinesFile):
    @staticmethod
    def read(file):
        from runai_model_streamer import SafetensorsStreamer

        with SafetensorsStreamer() as streamer:
            streamer.stream_file(file)
            return dict(streamer.get_tensors())


class SafetensorsOnOurs(OnGanglinesFile):
    @staticmethod
    def read(file):
        import safetensors.torch

        return safetensors.torch.load_file(file)


class SafetensorsInto(SafetensorsOnOurs):
    """Into the state that is there, as `load_state_dict` does."""

    def load(self, room, folder, step):
        for kind, tensors in super().load(room, folder, step).items():
            for name, tensor in tensors.items():
                room[kind][name].copy_(tensor)
        return room


class Peer:
    """A library that writes a folder for each step."""

    def __init__(self, folder):
        pass

    def where(self, folder, step):
        return folder / str(step)


class Torch(Peer):
    def save(self, state, folder, step):
        self.where(folder, step).mkdir()
        torch.save(state, self.where(folder, step) / "state.pt")

    def load(self, room, folder, step):
        return torch.load(self.where(folder, step) / "state.pt", weights_only=True)


class Safetensors(Peer):
    def save(self, state, folder, step):
        import safetensors.torch

        self.where(folder, step).mkdir()
        flat = {f"{kind}.{name}": tensor for kind, tensors in state.items() for name, tensor in tensors.items()}
        safetensors.torch.save_file(flat, self.where(folder, step) / "state.safetensors")

    def load(self, room, folder, step):
        flat = SafetensorsOnOurs.read(self.where(folder, step) / "state.safetensors")
        return {kind: {name: flat[f"{kind}.{name}"] for name in tensors} for kind, tensors in room.items()}


class Dcp(Peer):
    threads = 1

    def writer(self, folder, step):
        return dcp.FileSystemWriter(self.where(folder, step), thread_count=self.threads)

    def save(self, state, folder, step):
        dcp.save(state, storage_writer=self.writer(folder, step), no_dist=True)

    def load(self, room, folder, step):
        dcp.load(room, storage_reader=dcp.FileSystemReader(self.where(folder, step)), no_dist=True)
        return room


class DcpThreads(Dcp):
    threads = 4


class DcpAsync(Dcp):
    def save(self, state, folder, step):
        return dcp.async_save(state, storage_writer=self.writer(folder, step), no_dist=True).result


class DcpAsyncKept(Dcp):
    """With a stager of one's own, which keeps its memory from save to save."""

    threads = 4

    def __init__(self, folder):
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        self.stager = DefaultStager(StagingOptions(False, False, False, False))

    def save(self, state, folder, step):
        # Only a checkpoint id lets DCP take the stager: its writer is one itself.
        writer = dcp.filesystem._FileSystemWriter(self.where(folder, step), thread_count=self.threads)
        return dcp.async_save(state, storage_writer=writer, async_stager=self.stager, no_dist=True).result


class Torchsnapshot(Peer):
    @staticmethod
    def app(state):
        from torchsnapshot import StateDict

        return {kind: StateDict(**tensors) for kind, tensors in state.items()}

    def save(self, state, folder, step):
        from torchsnapshot import Snapshot

        Snapshot.take(str(self.where(folder, step)), self.app(state))

    def load(self, room, folder, step):
        from torchsnapshot import Snapshot

        app = self.app(room)
        Snapshot(str(self.where(folder, step))).restore(app)
        return {kind: dict(tensors) for kind, tensors in app.items()}


class TorchsnapshotAsync(Torchsnapshot):
    def save(self, state, folder, step):
        from torchsnapshot import Snapshot

        return Snapshot.async_take(str(self.where(folder, step)), self.app(state)).wait


class Orbax(Peer):
    is_async = False

    def __init__(self, folder):
        import orbax.checkpoint as ocp

        make = ocp.AsyncCheckpointer if self.is_async else ocp.Checkpointer
        self.ocp, self.checkpointer, self.arrays = ocp, make(ocp.StandardCheckpointHandler()), None

    def save(self, state, folder, step):
        self.checkpointer.save(self.where(folder, step), args=self.ocp.args.StandardSave(self.arrays))
        return self.checkpointer.wait_until_finished if self.is_async else None

    def load(self, room, folder, step):
        import jax

        abstract = jax.tree.map(self.ocp.utils.to_shape_dtype_struct, self.arrays)
        return self.checkpointer.restore(self.where(folder, step), args=self.ocp.args.StandardRestore(abstract))

    def prepare(self, state):
        """Its own kind of arrays, as a JAX program would have them."""
        import jax

        self.arrays = jax.tree.map(lambda tensor: jax.block_until_ready(jax.numpy.from_dlpack(tensor)), state)


class OrbaxAsync(Orbax):
    is_async = True


LIBRARIES = {
    "gangline": Gangline, "gangline-overlap": GanglineOverlap, "gangline-new": GanglineNew, "torch": Torch, "safetensors": Safetensors, "dcp": Dcp,
    "dcp-threads": DcpThreads, "dcp-async": DcpAsync, "dcp-async-kept": DcpAsyncKept, "torchsnapshot": Torchsnapshot,
    "torchsnapshot-async": TorchsnapshotAsync, "orbax": Orbax, "orbax-async": OrbaxAsync, "runai": Runai,
    "safetensors-on-ours": SafetensorsOnOurs, "safetensors-into": SafetensorsInto, "gangline-first": GanglineFirst,
    "gangline-background": GanglineBackground,
}  # fmt: skip

# Those of which only the load is new.
LOADERS = {"gangline-new", "gangline-first", "gangline-background", "runai", "safetensors-on-ours", "safetensors-into"}


def state_of(checkpoint, copies):
    """The state dict: {kind: {name: tensor}}, each in memory of its own."""
    data = (checkpoint / "data.bin").read_bytes()
    state = {}
    for line in (checkpoint / "index.tsv").read_text().splitlines():
        kind, element, offset, length, columns, name = line.split("\t")
        dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[element]
        part = memoryview(data)[int(offset) : int(offset) + int(length)]
        tensor = torch.frombuffer(part, dtype=dtype).reshape(-1, int(columns))
        for copy in range(copies):
            state.setdefault(kind, {})[f"{copy}.{name}"] = tensor.clone()
    return state


def bits(value):
    """Its bytes, flat, without a copy."""
    if isinstance(value, torch.Tensor):
        return value.reshape(-1).view(torch.uint8).numpy()
    return numpy.asarray(value).reshape(-1).view(numpy.uint8)


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def sync(folder):
    """Makes files and folders durable. Who did so already pays nothing."""
    for path in [folder.parent, folder, *folder.rglob("*")]:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def drop_from_cache(folder):
    for path in files(folder):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def cpu_seconds():
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def bytes_read():
    """What the kernel has read from disks for this process."""
    return int(pathlib.Path("/proc/self/io").read_text().split("read_bytes:")[1].split()[0])


def tell(column, figure):
    print(column, figure, sep="\t")


def save(library, state, folder, step):
    begin, cpu = time.perf_counter(), cpu_seconds()
    finish = library.save(state, folder, step)
    blocked = time.perf_counter() - begin
    if finish is not None:
        finish()
    sync(library.where(folder, step))
    wall = time.perf_counter() - begin
    # Who has nothing to wait for has only its fsync left, for which the trainer stands still as well.
    return {"wall": wall, "cpu": cpu_seconds() - cpu, "blocked": wall if finish is None else blocked}


def compute(products):
    """A forward and backward pass, as far as the machine's cores know."""
    one = torch.ones(STEP_SIZE, STEP_SIZE)
    for _ in range(products):
        torch.mm(one, one)


def seconds(action, *arguments):
    begin = time.perf_counter()
    action(*arguments)
    return time.perf_counter() - begin


def save_beside_step(library, state, folder, step):
    """How long the trainer is held up by a save and by what goes on beside the computing that follows it, until the next
    optimizer step may begin; and how long of that it stood still."""
    compute(10)
    products = max(1, round(10 * STEP_SECONDS / seconds(compute, 10)))
    alone = statistics.median(seconds(compute, products) for _ in range(STEP_ROUNDS))
    begin = time.perf_counter()
    finish = library.save(state, folder, step)
    if finish is None:
        sync(library.where(folder, step))
    stood = time.perf_counter() - begin
    compute(products)
    if hasattr(library, "before_step"):
        stood += seconds(library.before_step)
    held = time.perf_counter() - begin - alone
    if finish is not None:
        finish()
    return {"held": held, "blocked": stood}


def touch_free_memory(size):
    """A virtual machine's host may back memory only when it is first touched, and take it back some seconds after it was
    freed: 2.4 s a GB where this was written, whoever comes first pays. So that much, and as much again for the page cache, is
    touched and freed at once before each load, as on a machine that has its memory."""
    for advice in (mmap.MADV_HUGEPAGE, mmap.MADV_NOHUGEPAGE):
        with mmap.mmap(-1, size) as room:
            room.madvise(advice)
            touched = numpy.frombuffer(room, numpy.uint8)
            touched[::PAGE] = 1
            del touched  # or the room can't be closed


def load(library, room, folder, step):
    drop_from_cache(library.where(folder, step))
    touch_free_memory(2 * sum(path.stat().st_size for path in files(library.where(folder, step))))
    before = bytes_read()
    found, taken = timed_load(library, room, folder, step)
    size = sum(path.stat().st_size for path in files(library.where(folder, step)))
    assert bytes_read() - before > 0.9 * size, "it was read from the cache, not from the disk"
    return found, {"load": taken["wall"], "load-cpu": taken["cpu"]}


def load_warm(library, room, folder, step):
    for path in files(library.where(folder, step)):
        with open(path, "rb", buffering=0) as file:
            while file.read(WARM_BYTES):
                pass
    return timed_load(library, room, folder, step)[1]["wall"]


def timed_load(library, room, folder, step):
    begin, cpu = time.perf_counter(), cpu_seconds()
    found = library.load(room, folder, step)
    # What is mapped and not read yet is read now: one byte of each page.
    touched = sum(int(bits(value)[::PAGE].sum()) for kind in found.values() for value in kind.values())
    taken = {"wall": time.perf_counter() - begin, "cpu": cpu_seconds() - cpu}
    assert touched
    if hasattr(library, "after_load"):
        library.after_load()
    return found, taken


def check(found, state):
    for kind, tensors in state.items():
        for name, tensor in tensors.items():
            assert numpy.array_equal(bits(found[kind][name]), bits(tensor)), f"{kind} {name} came back changed"


def main(name, checkpoint, copies, folder):
    warnings.filterwarnings("ignore")
    signal.alarm(SECONDS_MAX)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    state = state_of(checkpoint, copies)
    library = LIBRARIES[name](folder)
    if hasattr(library, "prepare"):
        library.prepare(state)
    tell("state", sum(bits(tensor).size for tensors in state.values() for tensor in tensors.values()))
    save(library, state, folder, 1)
    figures = save(library, state, folder, 2)
    figures["bytes"] = sum(path.stat().st_size for path in files(library.where(folder, 2)))
    beside = save_beside_step(library, state, folder, 3)
    figures["held"] = beside["held"]
    if hasattr(library, "before_step"):
        figures["blocked"] = beside["blocked"]
    room = {kind: {name: torch.ones_like(tensor) for name, tensor in tensors.items()} for kind, tensors in state.items()}
    found, taken = load(library, room, folder, 2)
    check(found, state)
    del found
    taken["warm"] = load_warm(library, room, folder, 2)
    for column, figure in {**({} if name in LOADERS else figures), **taken}.items():
        tell(column, figure)
    shutil.rmtree(folder)


main(sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), pathlib.Path(sys.argv[4]))
