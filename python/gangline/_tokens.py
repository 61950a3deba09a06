"""`gangline.Tokens`: batches of tokens in an order that is the same on any number of ranks, with a position that
a checkpoint keeps."""

import functools
import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy

from . import _native
from .errors import Refused

Path = str | os.PathLike[str]

# Samples that are held out together.
GROUP = 64
# Batches' memory that is kept for later batches.
KEPT_MAX = 4
# Weights are whole numbers of millionths.
MILLION = 1_000_000
WIDTHS = {"int64": numpy.int64, "int32": numpy.int32}
# Set by the platform, if numbers went bad a second time: the batches up to this step are left out.
SKIP = "GANGLINE_SKIP_DATA_THROUGH"


class Batch(NamedTuple):
    """One rank's rows of a global batch: `inputs, labels = batch`."""

    inputs: Any
    """Tokens, [rows, sequence_length]."""
    labels: Any
    """The token that follows each of them."""


class Tokens:
    """Iterates over the batches of one rank.

        tokens = gangline.Tokens("data", sequence_length=2048, global_batch=512, seed=1)
        for inputs, labels in tokens:
            ...

    source: a file or folder of tokens, in any format that docs/reference/data.md lists; or several by name, to be
        mixed.
    sequence_length: tokens of a sample's inputs, and of its labels, which are the tokens that follow each.
    global_batch: samples of a batch over all ranks. Ranks get uneven slices if they don't divide it; see
        `loss_weight`.
    seed: chooses the order.
    shuffle: "blocks", which reads neighbouring samples at about the same time; "global", for data that fits into
        memory; or "none".
    dtype: what a batch holds, "int64", "int32", or "stored" for the files' own type (numpy only for uint16 and
        uint32, with which torch can't compute).
    labels: "shifted", for a Batch of inputs and labels; "same", for {"input_ids", "labels"} that are the same, as
        models expect that shift labels themselves (transformers); None, for the inputs alone.
    source_dtype: the type of raw tokens, which no header says, such as "uint16" for nanoGPT's files.
    weights: how often each source is drawn from, by name; or pairs of a step and the weights that hold from this
        step on. A later pair changes nothing before it. Without weights, sources count by their samples.
    held_out: holds out one group of 64 neighbouring samples in so many; part: "training" or "held_out", which of
        both is read.
    epochs: how many passes over the data one iteration makes; None iterates without end, as mixtures do. The next
        iteration goes on behind the last.
    rank, world_size: of the data-parallel ranks [default: torch.distributed's if it is initialised, else RANK and
        WORLD_SIZE of the environment]
    kind: "torch" or "numpy" [default: torch, if it was imported]
    pin_memory: whether torch's batches are in page-locked memory, for copies to a GPU beside the computation
    threads: how many fill a batch.

    Where torch was imported, it is an IterableDataset: `DataLoader(tokens, batch_size=None)`, without workers, gives
    the same batches. A batch's memory is used again only after the last reference to it is gone.

    Pass it, as it is, in the state dict of a gangline.Store's `save`, and in the `into` of its `load`: then it
    goes on behind the batches that were given before the save, at any number of ranks. Raises NotFound, Corrupt
    or Refused.
    """

    def __new__(cls, *args, **kwargs):
        torch = sys.modules.get("torch.utils.data")
        return super().__new__(cls if torch is None else _iterable(cls, torch.IterableDataset))

    def __init__(
        self,
        source: Path | Mapping[str, Path],
        *,
        sequence_length: int,
        global_batch: int,
        seed: int = 0,
        shuffle: str = "blocks",
        dtype: str = "int64",
        labels: str | None = "shifted",
        source_dtype: str | None = None,
        weights: Mapping[str, float] | Sequence[tuple[int, Mapping[str, float]]] | None = None,
        held_out: int | None = None,
        part: str = "training",
        epochs: int | None = 1,
        rank: int | None = None,
        world_size: int | None = None,
        kind: str | None = None,
        pin_memory: bool = False,
        threads: int = 1,
    ) -> None:
        sources = dict(source) if isinstance(source, Mapping) else {"": source}
        _one_of("shuffle", shuffle, ("blocks", "global", "none"))
        _one_of("dtype", dtype, (*WIDTHS, "stored"))
        _one_of("labels", labels, ("shifted", "same", None))
        _one_of("part", part, ("training", "held_out"))
        if held_out is None and part == "held_out":
            raise Refused("use part='held_out': say how much, with held_out=100 for one sample in 100")
        if held_out is not None and held_out < 2:
            raise Refused(f"use held_out={held_out}: one group in at least 2")
        self.rank, self.world_size = _place(rank, world_size)
        options = {
            "sequence_length": sequence_length,
            "global_batch": global_batch,
            "seed": seed,
            "shuffle": shuffle,
            "held_out": None if held_out is None else [held_out, GROUP],
            "is_held_out": part == "held_out",
            "stages": _stages(weights, sources, global_batch),
            "epochs": epochs if len(sources) == 1 else None,
            "rank": self.rank,
            "world_size": self.world_size,
            "threads": threads,
        }
        if len(sources) > 1 and epochs not in (None, 1):
            raise Refused("use epochs with several sources: a mixture has no end")
        paths = [(os.fspath(path), source_dtype) for path in sources.values()]
        self._names = list(sources)
        self._native = _native.Tokens(paths, json.dumps(options))
        rows, self.loss_weight, stored = self._native.shape()
        self.labels, self._width = labels, dtype
        self._memory = _memory(kind, (rows, sequence_length), WIDTHS.get(dtype, numpy.dtype(stored)), pin_memory)
        self._lock = threading.Lock()
        self._is_fresh = True  # whether batches may be left out before the next one

    loss_weight: float
    """What to multiply the mean loss of this rank with before gradients are averaged over the ranks: 1 if all have
    as many rows."""

    def __iter__(self) -> Iterator[Any]:
        """Yields the batches that are left of the current pass."""
        _refuse_workers()
        with self._lock:
            self._leave_out()
            found = self._native.batches()
        left = None if found is None else found[1]
        while left is None or left > 0:
            yield self.next_batch()
            left = None if left is None else left - 1

    def __len__(self) -> int:
        """Returns the batches of the current pass, those before a resume included."""
        found = self._native.batches()
        if found is None:
            raise TypeError("tokens without an end have no length")
        return found[0]

    def next_batch(self) -> Any:
        """Returns the next batch, without regard to passes."""
        with self._lock:
            self._leave_out()
            inputs, flat_inputs, give_inputs = self._memory()
            if self.labels != "shifted":
                self._native.fill(self._width, flat_inputs)
                made = give_inputs(inputs)
                return made if self.labels is None else {"input_ids": made, "labels": made}
            labels, flat_labels, give_labels = self._memory()
            self._native.fill(self._width, flat_inputs, flat_labels)
            return Batch(give_inputs(inputs), give_labels(labels))

    @property
    def samples(self) -> list[tuple[str, int, int]]:
        """The name of the source (empty if there is one), the epoch and the number of each sample of the last
        batch's rows."""
        return [(self._names[source], epoch, number) for source, epoch, number in self._native.samples()]

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """The tokens of each source, and its samples in the part that is read."""
        return dict(zip(self._names, self._native.sizes(), strict=True))

    @property
    def steps(self) -> int:
        """Batches given so far, those before a resume included."""
        return self._native.steps()

    def state_dict(self) -> dict[str, Any]:
        """Returns the position behind the last batch, at most 200 bytes of JSON and the same on all ranks."""
        return json.loads(self._native.state())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a position. The number of ranks and the global batch may be others. Raises Refused, and
        changes nothing, if it is of other data or another order."""
        with self._lock:
            self._native.restore(json.dumps(dict(state)), True)
            self._is_fresh = True

    def check_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises Refused for what `load_state_dict` would refuse."""
        if not isinstance(state, Mapping):
            raise Refused(f"resume the data: its state is a {type(state).__qualname__}")
        self._native.restore(json.dumps(dict(state)), False)

    def __reduce__(self):
        raise Refused("send tokens to another process: open them there, with its rank")

    def _leave_out(self):
        """Leaves out the batches that the platform says make numbers go bad, once after the start or a resume."""
        if not self._is_fresh:
            return
        self._is_fresh = False
        through = os.environ.get(SKIP, "")
        if through and not through.isdecimal():
            raise Refused(f"use {SKIP}={through!r}: it is no step")
        self._native.skip(max(0, int(through or 0) - self._native.steps()))


@functools.lru_cache(maxsize=8)
def _iterable(cls, base):
    """Returns the class as one of torch's iterable datasets, which its DataLoader knows by their class."""
    return cls if issubclass(cls, base) else type(cls.__name__, (cls, base), {"__module__": cls.__module__})


def _one_of(name, value, known):
    if value not in known:
        raise Refused(f"use {name}={value!r}: it is one of {', '.join(map(repr, known))}")


def _place(rank, world_size):
    """Returns this rank and the number of ranks."""
    if rank is not None or world_size is not None:
        if rank is None or world_size is None:
            raise Refused("use rank or world_size alone: give both, or neither")
        return rank, world_size
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    try:
        return int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)
    except ValueError as error:
        raise Refused(f"use RANK and WORLD_SIZE of the environment: {error}") from None


def _stages(weights, sources, global_batch):
    """Returns the first position and the weights, in the sources' order, of each stage."""
    if weights is None:
        return []
    pairs = [(0, weights)] if isinstance(weights, Mapping) else list(weights)
    made = []
    for step, named in pairs:
        unknown = [name for name in named if name not in sources]
        if unknown:
            raise Refused(f"use weights of {unknown[0]!r}: the sources are {', '.join(map(repr, sources))}")
        numbers = [named.get(name, 0) for name in sources]
        if not all(isinstance(number, (int, float)) and 0 <= number <= MILLION for number in numbers):
            raise Refused(f"use weights {numbers}: each is a number from 0 to {MILLION}")
        made.append([int(step) * global_batch, [round(number * MILLION) for number in numbers]])
    return made


def _refuse_workers():
    torch = sys.modules.get("torch.utils.data")
    if torch is not None and torch.get_worker_info() is not None:
        raise Refused("read tokens in a DataLoader's worker: use num_workers=0, batches are filled at memory speed anyway")


def _memory(kind, shape, dtype, is_pinned):
    """Returns what gives memory for a batch: the object whose memory it is, the memory as flat bytes, and what makes
    of the object the value that is handed out."""
    torch = sys.modules.get("torch")
    kind = kind or ("numpy" if torch is None else "torch")
    _one_of("kind", kind, ("torch", "numpy"))
    if kind == "numpy":
        return _Pool(shape, dtype, lambda array: array).take
    import torch

    if is_pinned:
        if not torch.cuda.is_available():
            raise Refused("use pin_memory=True: there is no GPU to copy to")
        # torch's own allocator knows which copies are under way, and uses memory again after them.
        torch_type = getattr(torch, numpy.dtype(dtype).name)

        def pinned():
            tensor = torch.empty(shape, dtype=torch_type, pin_memory=True)
            return tensor, tensor.numpy().reshape(-1).view(numpy.uint8), lambda tensor: tensor

        return pinned
    return _Pool(shape, dtype, torch.from_numpy).take


class _Pool:
    """Arrays that are handed out again once nobody else refers to them."""

    def __init__(self, shape, dtype, give):
        self.shape, self.dtype, self.give = shape, dtype, give
        self.kept = []
        self.kept.append(self.new())
        self.unused = self.references(self.kept[0])
        """What `references` counts of an array that only the pool has."""

    def new(self):
        array = numpy.empty(self.shape, self.dtype)
        return array, array.reshape(-1).view(numpy.uint8)

    @staticmethod
    def references(one):
        return sys.getrefcount(one[0])

    def take(self):
        for at, one in enumerate(self.kept):
            if self.references(one) == self.unused:
                # The next search begins with what was handed out longest ago.
                self.kept.append(self.kept.pop(at))
                return (*one, self.give)
        made = self.new()
        if len(self.kept) < KEPT_MAX:
            self.kept.append(made)
        return (*made, self.give)
