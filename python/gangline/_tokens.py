"""`gangline.Tokens`: batches of tokens in an order that is the same on any number of ranks, with a position that
a checkpoint keeps."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy

from . import _native
from ._order import MegatronOrder, Ordered, absolute, cache_of, one_of, options_of
from ._report import data_phase
from .errors import Refused

Path = str | os.PathLike[str]

# Batches' memory that is kept for later batches.
KEPT_MAX = 4
WIDTHS = {"int64": numpy.int64, "int32": numpy.int32}


class Batch(NamedTuple):
    """One rank's rows of a global batch: `inputs, labels = batch`."""

    inputs: Any
    """Tokens, [rows, sequence_length]."""
    labels: Any
    """The token that follows each of them."""


class PackedBatch(NamedTuple):
    """One rank's rows of a global batch of packed documents. Padding is token 0, and its labels are -100."""

    inputs: Any
    """Tokens, [rows, sequence_length]."""
    labels: Any
    """The token that follows each of them in its document; -100 for padding."""
    positions: Any
    """The place of each token in its document, from 0."""
    cu_seqlens: Any
    """Where documents begin in the rows laid end to end, and where the last one ends: int32, as attention kernels for
    sequences of several lengths take it."""
    max_seqlen: int
    """The tokens of the longest."""

    def mask(self) -> Any:
        """Returns which token may attend to which, [rows, 1, sequence_length, sequence_length] of bool: those before it in
        its own document, and itself. For attention without `cu_seqlens`, such as torch's
        scaled_dot_product_attention."""
        documents = (self.positions == 0).cumsum(1)
        places = (self.positions[0] * 0 + 1).cumsum(0)
        is_before = places[:, None] >= places[None, :]
        return ((documents[:, :, None] == documents[:, None, :]) & is_before)[:, None]


class Tokens(Ordered):
    """Iterates over the batches of one rank.

        tokens = gangline.Tokens("data", sequence_length=2048, global_batch=512, seed=1)
        for inputs, labels in tokens:
            ...

    source: a file or folder of tokens, in any format that docs/reference/data.md lists, or
        s3://bucket/folder or https://host/folder; or several by name, to be mixed.
    sequence_length: tokens of a sample's inputs, and of its labels, which are the tokens that follow each.
    global_batch: samples of a batch over all ranks. Ranks get uneven slices if they don't divide it; see
        `loss_weight`.
    seed: chooses the order.
    shuffle: "blocks", which reads neighbouring samples at about the same time; "global", for data that fits into
        memory; "none"; or a MegatronOrder, to go on with a run of Megatron-Core's.
    dtype: what a batch holds, "int64", "int32", or "stored" for the files' own type (numpy only for uint16 and
        uint32, with which torch can't compute).
    labels: "shifted", for a Batch of inputs and labels; "same", for {"input_ids", "labels"} that are the same, as
        models expect that shift labels themselves (transformers); None, for the inputs alone.
    source_dtype: the type of raw tokens, which no header says, such as "uint16" for nanoGPT's files.
    weights: how often each source is drawn from, by name; or pairs of a step and the weights that hold from this
        step on. A later pair changes nothing before it. Without weights, sources count by their samples.
    held_out: holds out one group of 64 neighbouring samples in so many; part: "training" or "held_out", which of
        both is read.
    pack: "documents" makes samples of whole documents, of which only those are cut that are longer than a sample, and
        gives a PackedBatch, whose boundaries keep documents from attending to each other. With labels="same" it is
        {"input_ids", "labels", "shift_labels", "position_ids", "use_cache"}, from which transformers' models find them.
    epochs: how many passes over the data one iteration makes; None iterates without end, as mixtures do. The next
        iteration goes on behind the last.
    rank, world_size: of the data-parallel ranks [default: torch.distributed's if it is initialised, else RANK and
        WORLD_SIZE of the environment]
    kind: "torch" or "numpy" [default: torch, if it was imported]
    pin_memory: whether torch's batches are in page-locked memory, for copies to a GPU beside the computation
    threads: how many fill a batch.
    cache, cache_limit: the folder into which remote data is fetched, once for all processes of this node, and the
        most bytes of it [default: GANGLINE_DATA_CACHE, or gangline/data in ~/.cache; no limit]

    Where torch was imported, it is an IterableDataset: `DataLoader(tokens, batch_size=None)`, without workers, gives
    the same batches. A batch's memory is used again only after the last reference to it is gone.

    Pass it, as it is, in the state dict of a gangline.Store's `save`, and in the `into` of its `load`: then it
    goes on behind the batches that were given before the save, at any number of ranks. Raises NotFound, Corrupt
    or Refused.
    """

    def __init__(
        self,
        source: Path | Mapping[str, Path],
        *,
        sequence_length: int,
        global_batch: int,
        seed: int = 0,
        shuffle: str | MegatronOrder = "blocks",
        dtype: str = "int64",
        labels: str | None = "shifted",
        source_dtype: str | None = None,
        weights: Mapping[str, float] | Sequence[tuple[int, Mapping[str, float]]] | None = None,
        held_out: int | None = None,
        part: str = "training",
        pack: str | None = None,
        epochs: int | None = 1,
        rank: int | None = None,
        world_size: int | None = None,
        kind: str | None = None,
        pin_memory: bool = False,
        threads: int = 1,
        cache: Path | None = None,
        cache_limit: int | None = None,
    ) -> None:
        sources = dict(source) if isinstance(source, Mapping) else {"": source}
        one_of("dtype", dtype, (*WIDTHS, "stored"))
        one_of("labels", labels, ("shifted", "same", None))
        one_of("pack", pack, (None, "documents"))
        if pack is not None and labels is None:
            raise Refused("use labels=None with pack: which tokens are padding is said by the labels alone")
        self.rank, self.world_size, options = options_of(
            sources, rank, world_size, global_batch=global_batch, seed=seed, shuffle=shuffle, weights=weights,
            held_out=held_out, part=part, epochs=epochs, sequence_length=sequence_length, threads=threads,
            packs=pack is not None,
        )  # fmt: skip
        paths = [(os.fspath(path), source_dtype) for path in sources.values()]
        native = _native.Tokens(paths, options, cache_of(cache, cache_limit))
        covered = {True: "every byte", False: "sizes and ends of files"}
        ids = [f"{digest} (of {covered[is_whole]})" for digest, is_whole in native.ids()]
        super().__init__(list(sources), native, [absolute(path) for path, _ in paths], ids, options)
        rows, stored = self._native.shape()
        self.labels, self._width, self._is_packed = labels, dtype, pack is not None
        shape, of_tokens = (rows, sequence_length), WIDTHS.get(dtype, numpy.dtype(stored))
        self._memory = _memory(kind, shape, of_tokens, pin_memory)
        if self._is_packed:
            of_positions = numpy.int64 if dtype == "int64" else numpy.int32
            self._positions_memory = _memory(kind, shape, of_positions, pin_memory)

    def next_batch(self) -> Any:
        """Returns the next batch, without regard to passes."""
        with self._lock:
            self._leave_out()
            inputs, flat_inputs, give_inputs = self._memory()
            if self._is_packed:
                return self._next_packed(inputs, flat_inputs, give_inputs)
            if self.labels != "shifted":
                self._fill(flat_inputs)
                made = give_inputs(inputs)
                return made if self.labels is None else {"input_ids": made, "labels": made}
            labels, flat_labels, give_labels = self._memory()
            self._fill(flat_inputs, (flat_labels, None))
            return Batch(give_inputs(inputs), give_labels(labels))

    def _fill(self, *memory):
        with data_phase(self._native.is_here):
            self._native.fill(self._width, *memory)

    def _next_packed(self, inputs, flat_inputs, give_inputs):
        labels, flat_labels, give_labels = self._memory()
        positions, flat_positions, give_positions = self._positions_memory()
        self._fill(flat_inputs, (flat_labels, flat_positions))
        inputs, labels, positions = give_inputs(inputs), give_labels(labels), give_positions(positions)
        if self.labels == "same":
            # `labels` only ask the models for a loss, which they take from the shifted ones. With a cache of keys and values,
            # as models have by default, they don't look for documents in the positions.
            return {"input_ids": inputs, "labels": labels, "shift_labels": labels, "position_ids": positions, "use_cache": False}
        boundaries = numpy.array(self._native.boundaries(), numpy.int32)
        longest = int(numpy.diff(boundaries).max(initial=0))
        if not isinstance(inputs, numpy.ndarray):
            boundaries = sys.modules["torch"].from_numpy(boundaries)
        return PackedBatch(inputs, labels, positions, boundaries, longest)

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """The tokens of each source, and its samples in the part that is read."""
        return dict(zip(self._names, self._native.sizes(), strict=True))

def _memory(kind, shape, dtype, is_pinned):
    """Returns what gives memory for a batch: the object whose memory it is, the memory as flat bytes, and what makes
    of the object the value that is handed out."""
    torch = sys.modules.get("torch")
    kind = kind or ("numpy" if torch is None else "torch")
    one_of("kind", kind, ("torch", "numpy"))
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
