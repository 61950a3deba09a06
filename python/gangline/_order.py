"""What gangline.Tokens and gangline.Rows have in common: an order that is the same on any number of ranks, passes over it,
and a position in it that a checkpoint keeps."""

import functools
import itertools
import json
import operator
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from . import _origin
from .errors import Refused

# Samples that are held out together.
GROUP = 64
# The parts into which Megatron-Core splits documents, in its order.
MEGATRON_PARTS = ("train", "valid", "test")
# Weights are whole numbers of millionths.
MILLION = 1_000_000
# Set by the platform, if numbers went bad a second time: the batches up to this step are left out.
SKIP = "GANGLINE_SKIP_DATA_THROUGH"


class MegatronOrder(NamedTuple):
    """The order in which Megatron-Core's GPTDataset reads a dataset, or its BlendedDataset several, for `shuffle`: to go on with one
    of its runs. `seed` is the run's, and so are `weights` and the order of the sources; a batch has the run's samples of that step.

    samples: of the whole run, as Megatron-Core counts them: its `--train-iters` times its global batch, or `--train-samples`. They
        decide how many passes are shuffled together, and so the order from the first step on.
    split: the run's `--split`, such as "969, 30, 1".
    part: "train", "valid" or "test".
    surplus: by how much more each dataset of a blend with weights is read than its share, as a part of that: Megatron-Core's
        `mid_level_dataset_surplus`.
    """

    samples: int | None
    split: str
    part: str = "train"
    surplus: float = 0.005

    def shares(self) -> tuple[float, float]:
        """Returns the shares of the documents at which the part begins and ends."""
        one_of("part", self.part, MEGATRON_PARTS)
        try:
            weights = [float(number) for number in re.findall(r"[.0-9]+", self.split)]
        except ValueError as error:
            raise Refused(f"use split={self.split!r}: {error}") from None
        # One after the other, as numpy adds so few; Python's sum rounds otherwise.
        total = functools.reduce(operator.add, weights, 0.0)
        if not 0 < len(weights) <= len(MEGATRON_PARTS) or total <= 0:
            raise Refused(f"use split={self.split!r}: it is up to three numbers, as Megatron-Core's --split")
        shares = [weight / total for weight in weights]
        # In this order, so that rounding is the same.
        ends = [0.0, *itertools.accumulate(shares)] + [1.0] * (len(MEGATRON_PARTS) - len(shares))
        at = MEGATRON_PARTS.index(self.part)
        if at >= len(shares) or shares[at] == 0:
            raise Refused(f"use part={self.part!r}: split={self.split!r} leaves it nothing")
        return ends[at], ends[at + 1]


class Ordered:
    """Iterates over the batches of one rank. A subclass has `_native`, the order, and `next_batch`."""

    def __new__(cls, *args, **kwargs):
        torch = sys.modules.get("torch.utils.data")
        return super().__new__(cls if torch is None else _iterable(cls, torch.IterableDataset))

    def __init__(self, names, native, paths, ids, options):
        self._names, self._native = names, native
        self._paths, self._ids, self._options = paths, ids, json.loads(options)
        self._lock = threading.Lock()
        self._is_fresh = True  # whether batches may be left out before the next one
        _origin.note_data(self)

    @property
    def loss_weight(self) -> float:
        """What to multiply the mean loss of this rank with before gradients are averaged over the ranks: 1 if all
        have as many rows. With `pack` it is that of the last batch, by the labels that aren't padding."""
        return self._native.loss_weight()

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
        raise NotImplementedError

    def skip(self, batches: int) -> None:
        """Leaves out the next batches, such as those that a run read elsewhere before it goes on here."""
        if batches < 0:
            raise Refused(f"skip {batches} batches: batches that were given don't come again")
        with self._lock:
            self._native.skip(batches)

    @property
    def samples(self) -> list[tuple[str, int, int]]:
        """The name of the source (empty if there is one), the epoch and the number of each sample of the last
        batch's rows."""
        return [(self._names[source], epoch, number) for source, epoch, number in self._native.samples()]

    def described(self) -> list[dict[str, str]]:
        """Returns what a checkpoint says of each source: its name, its path or URL, a digest with what it covers, and which
        samples were read."""
        order = {name: self._options[name] for name in ("global_batch", "sequence_length", "seed", "shuffle")}
        part = "held-out" if self._options["is_held_out"] else "training"
        read = f"{self.steps} batches of the {part} part, " + ", ".join(f"{name} {value}" for name, value in order.items())
        about = zip(self._names, self._paths, self._ids, strict=True)
        return [{"name": name, "source": source, "digest": digest, "samples": read} for name, source, digest in about]

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


def absolute(place):
    """Returns a path as an absolute one, and a URL as it is."""
    return place if "://" in place else os.path.abspath(place)


def cache_of(folder, limit):
    """Returns the cache of remote datasets, as the native side takes it."""
    root = folder or os.environ.get("GANGLINE_DATA_CACHE")
    if not root:
        root = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "gangline", "data")
    limit = limit if limit is not None else os.environ.get("GANGLINE_DATA_CACHE_LIMIT")
    # The ranks of a job's attempt look at a dataset's objects once, its queue may have a quota, and its requests are noted.
    ours = ("HOME", "GANGLINE_ATTEMPT_DIR", "GANGLINE_DATA_CACHE_QUOTA", "GANGLINE_DATA_READS")
    is_setting = lambda name, value: (name.startswith("AWS_") or name in ours) and value.isascii()  # noqa: E731
    settings = {name: value for name, value in os.environ.items() if is_setting(name, value)}
    return os.fspath(root), None if limit in (None, "") else int(limit), settings


def options_of(
    sources, rank, world_size, *, global_batch, seed, shuffle, weights, held_out, part, epochs, sequence_length=1, threads=1, packs=False
):
    """Returns this rank, the number of ranks, and the options of the order as its native side takes them."""
    blend = []
    is_megatrons = isinstance(shuffle, MegatronOrder)
    if is_megatrons:
        blend, weights = blend_of(weights, sources), None
        shuffle = {"megatron": [*shuffle.shares(), shuffle.samples, shuffle.surplus]}
    else:
        one_of("shuffle", shuffle, ("blocks", "global", "none"))
    one_of("part", part, ("training", "held_out"))
    if held_out is None and part == "held_out":
        raise Refused("use part='held_out': say how much, with held_out=100 for one sample in 100")
    if held_out is not None and held_out < 2:
        raise Refused(f"use held_out={held_out}: one group in at least 2")
    if len(sources) > 1 and epochs not in (None, 1):
        raise Refused("use epochs with several sources: a mixture has no end")
    rank, world_size = place(rank, world_size)
    options = {
        "sequence_length": sequence_length,
        "global_batch": global_batch,
        "seed": seed,
        "shuffle": shuffle,
        "held_out": None if held_out is None else [held_out, GROUP],
        "is_held_out": part == "held_out",
        "stages": stages(weights, sources, global_batch),
        "blend": blend,
        "epochs": epochs if len(sources) == 1 or is_megatrons else None,
        "rank": rank,
        "world_size": world_size,
        "threads": threads,
        "packs_documents": packs,
    }
    return rank, world_size, json.dumps(options)


@functools.lru_cache(maxsize=8)
def _iterable(cls, base):
    """Returns the class as one of torch's iterable datasets, which its DataLoader knows by their class."""
    return cls if issubclass(cls, base) else type(cls.__name__, (cls, base), {"__module__": cls.__module__})


def one_of(name, value, known):
    if value not in known:
        raise Refused(f"use {name}={value!r}: it is one of {', '.join(map(repr, known))}")


def place(rank, world_size):
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


def blend_of(weights, sources):
    """Returns the weights of a blend of Megatron-Core's in the sources' order; none if they count by their samples."""
    if weights is None:
        return []
    if not isinstance(weights, Mapping) or set(weights) != set(sources):
        raise Refused(f"use weights={weights!r} in Megatron's order: one for each of {', '.join(map(repr, sources))}, for the whole run")
    return [float(weights[name]) for name in sources]


def stages(weights, sources, global_batch):
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
