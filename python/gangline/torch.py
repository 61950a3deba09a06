"""Plug-ins for torch.distributed.checkpoint, to which code switches by one argument, and which use no pickle.
Also `import_checkpoint`, which imports older checkpoints, and `watch`, which measures where the time of training steps goes.

    dcp.save(state_dict, storage_writer=gangline.torch.StorageWriter("checkpoints", step=step))
    dcp.load(state_dict, storage_reader=gangline.torch.StorageReader("checkpoints"))

torch's planners decide which rank writes what, and reshard on load, as always; the bytes go through the
store: one safetensors file for each rank, hashed, synced, and visible only when complete. Values that aren't
tensors are stored in the store's encoding, so only plain ones (and numpy arrays) are accepted.
"""

import dataclasses
import io
import os
from collections.abc import Mapping
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.distributed.checkpoint.storage import StorageReader as _StorageReader
from torch.distributed.checkpoint.storage import StorageWriter as _StorageWriter
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from . import _plan, _report, _values
from ._imports import import_checkpoint
from ._distributed import attempt
from ._kinds import BY_NAME, NumpyKind, TorchKind
from ._notes import Note
from ._plan import OBJECT, PLAN
from ._retention import Keep, given
from ._snapshot import Snapshot
from ._state import PER_RANK, RESERVED, VALUES, Piece, Wanted, array_payload, scalar_of
from ._pieces import own_bytes
from ._store import Reader, Writer
from ._types import RAW, STORED, original, stored, stored_box
from ._values import NOT_MINE, TAG
from ._watch import CudaClock, HostClock, Watch
from .errors import NotFound, Refused


__all__ = ["StorageReader", "StorageWriter", "import_checkpoint", "watch"]


def watch(model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, first_step: int | None = None) -> Watch:
    """Reports every step of a training, and where its time went, without a change to the loop.

        model = DistributedDataParallel(model)              # and torch.compile, if it is used
        gangline.torch.watch(model, optimizer)

    A step is a call of `optimizer.step()`. Of each, Gangline learns the time that waiting for torch's DataLoader or gangline.Tokens
    took, the time in collectives that no computation hid, that of forward and backward passes, the optimizer and Python's garbage
    collector, the state of the device's allocator, and the number of tokens: the elements of `input_ids`, or of a first input of whole
    numbers with two dimensions (padding counts). On a CUDA device times are the device's, by events, told a step or
    more later, and nothing is waited for; elsewhere they are the process's. `torch.save` and `torch.distributed.checkpoint.save` to
    files count as saves.

    A script may still call gangline.report(step, loss=...) after `optimizer.step()`, for all steps or some; its numbers of steps
    are then taken. `first_step` is the number of steps that were made before; without it, the optimizer's own count after its first
    step (as Adam has one), or else 0. Call it once in each rank, after the model is wrapped and compiled. A second call ends
    the first one's; `close()` of what is returned ends it as well. Outside of a Gangline job nothing is measured.
    """
    before = _report.watching()
    if before is not None:
        before.close()
    while isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        # Accelerate and Lightning wrap optimizers.
        optimizer = optimizer.optimizer
    if not isinstance(model, torch.nn.Module) or not isinstance(optimizer, torch.optim.Optimizer):
        kinds = f"{type(model).__qualname__} and {type(optimizer).__qualname__}"
        raise Refused(f"watch a {kinds}: it takes a torch.nn.Module and the torch.optim.Optimizer that trains it")
    devices = {parameter.device.type for parameter in model.parameters()}
    watch = Watch(first_step, CudaClock if "cuda" in devices else HostClock)
    if _report.is_in_job():
        watch.begin(model, optimizer)
        _report.watched_by(watch)
    return watch


class StorageWriter(_StorageWriter):
    """The destination of dcp.save.

    path: the store's folder, which all ranks must see; created if missing.
    step: the training step; a checkpoint of the same step is replaced.
    keep: how many good checkpoints stay; None keeps all.
    metadata: a few notes, str to str, int, float or bool, equal on all ranks.
    process_group: the one that dcp.save is given.

    dcp.save returns when the checkpoint is durable on all ranks. With dcp.async_save that happens in the
    background.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        step: int,
        *,
        keep: int | Keep | None = 2,
        metadata: Mapping[str, Note] | None = None,
        process_group: Any = None,
    ) -> None:
        self.path, self.step, self.keep = os.fspath(path), step, keep
        self.metadata, self.process_group = metadata, process_group

    def reset(self, checkpoint_id=None):
        if checkpoint_id is not None:
            self.path = os.fspath(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator, *args, **kwargs):
        self._rank, self._world_size = 0, 1
        if dist.is_initialized() and kwargs.get("use_collectives", True):
            self._rank, self._world_size = dist.get_rank(self.process_group), dist.get_world_size(self.process_group)
        if is_coordinator != (self._rank == 0):
            raise Refused("save: the coordinator has to be rank 0 of the process group")
        self._store = _writer(self.path, (self._rank, self._world_size, attempt()), self.keep)

    def prepare_local_plan(self, plan):
        return plan

    def prepare_global_plan(self, plans):
        # Only here are all ranks' original keys known, before torch joined them by dots; rank 0 stores them.
        merged = {fqn: path for plan in plans for fqn, path in (plan.planner_data or {}).items()}
        self._plan = _values.encode(merged, lambda path, value: NOT_MINE)
        return plans

    def write_data(self, plan, planner):
        try:
            pieces, results = self._pieces(plan, planner)
            self._store.raise_unasked()
        except BaseException as error:
            self._store.tell_refusal(self.step, error)
            raise
        self._store.send(self.step, pieces, self.metadata).durable()
        return _done(results)

    def _pieces(self, plan, planner):
        pieces, results, names = [], [], set()
        for item in plan.items:
            name = item.index.fqn
            if name in names or name.startswith(RESERVED):
                raise Refused(f"save {name!r}: one rank can write one part of it, under a name that isn't reserved")
            names.add(name)
            if item.type == WriteItemType.BYTE_IO:
                piece = own_bytes(OBJECT + name, _values.encode(_object(planner, item), _array))
            else:
                piece = _piece(name, item.tensor_data, planner.resolve_data(item))
            if piece is not None:
                pieces.append(piece)
            results.append(WriteResult(item.index, 0 if piece is None else piece.data.nbytes, None))
        if self._rank == 0:
            pieces.append(own_bytes(PLAN, self._plan))
        return pieces, results

    def finish(self, metadata, results):
        """Does nothing: the checkpoint was committed when rank 0 had seen all parts."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return "://" not in os.fspath(checkpoint_id)

    def storage_meta(self):
        return dcp.StorageMeta(checkpoint_id=self.path, save_id=str(self.step))


class StorageReader(_StorageReader):
    """The source of dcp.load: a checkpoint by StorageWriter, Store or DistributedStore.

    path: the store's folder.
    step: the checkpoint; None for the newest save of the current branch. Every byte is checked: Corrupt names
        what is damaged, and there is no fallback to an older checkpoint. `gangline.Reader(path).latest()`
        finds the newest good one.
    """

    def __init__(self, path: str | os.PathLike[str], step: int | None = None) -> None:
        self.path, self.step = os.fspath(path), step

    def reset(self, checkpoint_id=None):
        if checkpoint_id is not None:
            self.path = os.fspath(checkpoint_id)

    def read_metadata(self, *args, **kwargs):
        self._open()
        described = {}
        for name, held in self._held.items():
            if type(held) is not _Tensor:
                described[name] = dcp.BytesStorageMetadata()
                continue
            # One chunk, whatever the sharding: the store reads any box.
            size = torch.Size(held.shape)
            chunk = dcp.ChunkStorageMetadata(offsets=torch.Size([0] * len(size)), sizes=size)
            properties = dcp.TensorProperties(dtype=getattr(torch, held.type))
            described[name] = dcp.TensorStorageMetadata(properties, size, [chunk])
        return dcp.Metadata(described, self._keys)

    def set_up_storage_reader(self, metadata, is_coordinator, *args, **kwargs):
        if not hasattr(self, "_snapshot"):
            self._open()

    def prepare_local_plan(self, plan):
        return plan

    def prepare_global_plan(self, plans):
        return plans

    def read_data(self, plan, planner):
        wanted, commits = [], []
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                # The planner's interface takes a pickle by torch.save; this one is made here, from a safely
                # decoded value.
                planner.load_bytes(item, _pickled(self._value(item.storage_index.fqn)))
                continue
            target = planner.resolve_tensor(item).detach()
            room = TorchKind.room_in(target)
            held = target if room is not None else torch.empty(target.shape, dtype=target.dtype)
            one = self._wanted(item, target, TorchKind.room_in(held))
            if one.room.size:
                wanted.append(one)
            commits.append((item, target, held))
        self._snapshot.read(wanted)
        _loaded[os.path.abspath(self.path)] = self._snapshot.step
        for item, target, held in commits:
            if held is not target:
                target.copy_(held)
            planner.commit_tensor(item, target)
        return _done(None)

    def _open(self):
        """Opens the checkpoint: its content by the planners' names, and the original keys."""
        self._snapshot = _open(self.path, self.step)
        self._held, self._keys = (_of_store if VALUES in self._snapshot.tensors else _of_planners)(self._snapshot)

    def _value(self, name):
        value = self._held[name]
        if isinstance(value, _Bytes):
            return _values.decode(self._snapshot.bytes(value.name), _plan.array_again, self._snapshot.where)
        if isinstance(value, _Array):
            array = NumpyKind.new(value.type, value.shape)
            self._snapshot.read([Wanted(value.name, *value.box((0,) * len(value.shape), value.shape), NumpyKind.room_in(array))])
            return array
        if isinstance(value, _OfRanks):
            raise Refused(f"load {name!r}: each rank saved its own, which torch's planners don't know of: load it by DistributedStore")
        if _has_tensors(value):
            raise Refused(f"load {name!r}: there are tensors in it, and torch's planners take no {type(value).__name__} apart")
        return value

    def _wanted(self, item, target, room):
        held = self._held[item.storage_index.fqn]
        if TorchKind.type_of(target) != held.type or tuple(target.shape) != tuple(item.lengths):
            name, found = item.storage_index.fqn, TorchKind.type_of(target)
            raise Refused(f"load {name!r}: it was saved as {held.type}, and is to be loaded as {found}")
        return Wanted(held.name, *held.box(item.storage_offsets, item.lengths), room)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return "://" not in os.fspath(checkpoint_id)


@dataclasses.dataclass
class _Bytes:
    """A value that is stored separately under this name."""

    name: str


@dataclasses.dataclass
class _Tensor:
    """A tensor in the store, which may have another name there, and another type: see RAW."""

    name: str
    type: str
    shape: tuple
    stored_type: str
    raw: "str | None" = None

    def box(self, offsets, lengths):
        """Returns a box of it in the store's terms."""
        return stored_box(self.stored_type, self.raw, offsets, lengths)


@dataclasses.dataclass(eq=False)
class _OfRanks:
    """Stands for a value that was saved by rank."""

    payload: dict


class _Elsewhere:
    """Stands for an array while torch flattens its container."""


def _has_tensors(value):
    is_container = isinstance(value, (list, tuple))
    return isinstance(value, (_Elsewhere, torch.Tensor)) or is_container and any(map(_has_tensors, value))


class _Array(_Tensor):
    """An array of numpy's or JAX's, which torch's planners treat as a value."""


def _of_planners(snapshot):
    """Returns the content by StorageWriter: ({name: _Tensor or _Bytes}, {name: keys})."""
    held = {}
    for name, (kind, shape) in snapshot.tensors.items():
        if name.startswith(OBJECT):
            held[name.removeprefix(OBJECT)] = _Bytes(name)
        elif not name.startswith(RESERVED):
            held[name] = _Tensor(name, *original(kind, shape, None), kind)
    return held, _plan.keys(snapshot) if PLAN in snapshot.tensors else None


def _of_store(snapshot):
    """Returns the content by Store or DistributedStore, flattened as torch flattens state dicts: ({name:
    _Tensor or value}, {name: keys})."""
    held = {}

    def leaf(path, payload):
        if payload[TAG] == PER_RANK:
            return _OfRanks(payload)
        if payload[TAG] != "tensor":
            return scalar_of(payload)
        kind, name = BY_NAME[payload["as"]], payload["at"]
        type_name, shape = original(*snapshot.tensors[name], payload.get("raw"))
        make, value = (_Tensor, torch.empty(0, device="meta")) if kind is TorchKind else (_Array, _Elsewhere())
        stored_type = snapshot.tensors[name][0]
        held[id(value)] = make(name, type_name, shape, stored_type, payload.get("raw")), value
        return value

    tree = _values.decode(snapshot.values(), leaf, snapshot.where)
    flat, keys = flatten_state_dict(tree)
    return {name: held[id(value)][0] if id(value) in held else value for name, value in flat.items()}, keys


_writers = {}
# What StorageReader has loaded from a folder since a StorageWriter saved there: torch's planners don't
# connect the two.
_loaded = {}


def _writer(path, writer, keep):
    """Returns the writer of this folder, cached so that the next save reuses its memory."""
    key = os.path.abspath(path), os.getpid(), writer, given(keep)
    if key not in _writers:
        _writers[key] = Writer(path, writer, keep)
    loaded = _loaded.pop(key[0], None)
    if loaded is not None:
        _writers[key]._resumed(loaded)
    return _writers[key]


def _open(path, step):
    with Reader(path) as reader:
        steps = reader._native.line() if step is None else [step]
        if not steps:
            raise NotFound(f"find a checkpoint in {path}: there is none")
        return Snapshot(reader._native, steps[0])


def _piece(name, described, tensor):
    """Returns a part of a tensor, or None for an empty part of a tensor that isn't empty."""
    type_name = TorchKind.type_of(tensor)
    refusal = TorchKind.refusal(tensor)
    if refusal is None and type_name not in STORED:
        refusal = f"its elements are of type {type_name}" + ", which gangline.Store takes" * (type_name in RAW)
    if refusal:
        raise Refused(f"save {name!r}: {refusal}")
    if not tensor.numel() and described.size.numel():
        return None
    kind, lengths = stored(type_name, tensor.shape)
    shape, offsets = stored_box(kind, None, tuple(described.size), tuple(described.chunk.offsets))
    return Piece(name, kind, lengths, TorchKind.bytes_of(tensor), (list(shape), list(offsets)))


def _object(planner, item):
    """Returns the value to write. Uses the planner's pickle only if the planner doesn't expose the value
    itself."""
    if hasattr(planner, "lookup_object"):
        return planner.lookup_object(item.index)
    return torch.load(planner.resolve_data(item), weights_only=True)


def _array(path, value):
    """Encodes numpy arrays as values: torch's planners don't treat them as tensors."""
    if not NumpyKind.has_type(type(value)) and not isinstance(value, numpy.generic):
        return NOT_MINE
    value = numpy.asarray(value)
    if value.dtype.name not in STORED and value.dtype.name not in RAW:
        return NOT_MINE
    return array_payload(value)


def _pickled(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return buffer


def _done(value):
    future = Future()
    future.set_result(value)
    return future
