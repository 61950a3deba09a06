"""Plug-ins for torch.distributed.checkpoint: code that uses it switches by one argument, and gets rid of pickle.

    dcp.save(state_dict, storage_writer=gangline.torch.StorageWriter("checkpoints", step=step))
    dcp.load(state_dict, storage_reader=gangline.torch.StorageReader("checkpoints"))

torch's planners decide who writes what and reshard on load, as always; the bytes go through the store: one safetensors file
for each rank, hashed, synced, and visible only when all of it is there. Values that aren't tensors are kept in the store's
encoding, so none but plain ones (and numpy arrays) are taken.
"""

import base64
import io
import os
from collections.abc import Mapping
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch.distributed.checkpoint import metadata as dcp
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.distributed.checkpoint.storage import StorageReader as _StorageReader
from torch.distributed.checkpoint.storage import StorageWriter as _StorageWriter
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from . import _values
from ._distributed import attempt
from ._kinds import NumpyKind, TorchKind
from ._state import RESERVED, Piece, Wanted
from ._store import Reader, Snapshot, Writer, own_bytes
from ._types import NAMES, RAW, STORED, numpy_type
from ._values import NOT_MINE, TAG
from .errors import NotFound, Refused

OBJECT = RESERVED + "object."
PLAN = RESERVED + "plan"


class StorageWriter(_StorageWriter):
    """Where dcp.save writes.

    path: the store's folder, which all ranks see; it is made if it isn't there.
    step: of the training; a checkpoint of the same step is replaced.
    keep: how many good checkpoints stay; None keeps all.
    metadata: a few notes, str to str, equal on all ranks.
    process_group: the one that dcp.save is given.

    dcp.save returns when the checkpoint is durable on all ranks. With dcp.async_save that is in the background.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        step: int,
        *,
        keep: int | None = 2,
        metadata: Mapping[str, str] | None = None,
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
        # Only here is it known what all ranks' keys were before torch joined them by dots; rank 0 writes that down.
        merged = {fqn: path for plan in plans for fqn, path in (plan.planner_data or {}).items()}
        self._plan = _values.encode(merged, lambda path, value: NOT_MINE)
        return plans

    def write_data(self, plan, planner):
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
        self._store.raise_unasked()
        self._store.send(self.step, pieces, self.metadata).durable()
        return _done(results)

    def finish(self, metadata, results):
        """Nothing is left to do: the checkpoint was committed when rank 0 had seen all parts."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return "://" not in os.fspath(checkpoint_id)

    def storage_meta(self):
        return dcp.StorageMeta(checkpoint_id=self.path, save_id=str(self.step))


class StorageReader(_StorageReader):
    """What dcp.load reads: what StorageWriter wrote, and the tensors of what Store and DistributedStore wrote.

    path: the store's folder.
    step: which checkpoint; None for the newest. Every byte is checked: Corrupt names what isn't as it was saved, and doesn't
        fall back to an older one. `gangline.Reader(path).latest()` finds the newest good one.
    """

    def __init__(self, path: str | os.PathLike[str], step: int | None = None) -> None:
        self.path, self.step = os.fspath(path), step

    def reset(self, checkpoint_id=None):
        if checkpoint_id is not None:
            self.path = os.fspath(checkpoint_id)

    def read_metadata(self, *args, **kwargs):
        self._snapshot = _open(self.path, self.step)
        described, planner_data = {}, None
        for name, (kind, shape) in self._snapshot.tensors.items():
            if name.startswith(OBJECT):
                described[name.removeprefix(OBJECT)] = dcp.BytesStorageMetadata()
            elif name == PLAN:
                planner_data = _values.decode(self._snapshot.bytes(PLAN), _no_leaf, self._snapshot.where)
            elif not name.startswith(RESERVED):
                # One chunk, however it was cut: the store reads any box.
                size = torch.Size(shape)
                chunk = dcp.ChunkStorageMetadata(offsets=torch.Size([0] * len(size)), sizes=size)
                properties = dcp.TensorProperties(dtype=getattr(torch, NAMES[kind]))
                described[name] = dcp.TensorStorageMetadata(properties, size, [chunk])
        return dcp.Metadata(described, planner_data)

    def set_up_storage_reader(self, metadata, is_coordinator, *args, **kwargs):
        if not hasattr(self, "_snapshot"):
            self._snapshot = _open(self.path, self.step)

    def prepare_local_plan(self, plan):
        return plan

    def prepare_global_plan(self, plans):
        return plans

    def read_data(self, plan, planner):
        wanted, commits = [], []
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                text = self._snapshot.bytes(OBJECT + item.storage_index.fqn)
                # The planner's interface takes what torch.save writes: it gets that, made here, of a value decoded safely.
                planner.load_bytes(item, _pickled(_values.decode(text, _array_again, self._snapshot.where)))
                continue
            target = planner.resolve_tensor(item).detach()
            room = TorchKind.room_in(target)
            held = target if room is not None else torch.empty(target.shape, dtype=target.dtype)
            room = TorchKind.room_in(held)
            box = (tuple(item.storage_offsets), tuple(item.lengths))
            self._check(item, target)
            if room.size:
                wanted.append(Wanted(item.storage_index.fqn, *box, room))
            commits.append((item, target, held))
        self._snapshot.read(wanted)
        for item, target, held in commits:
            if held is not target:
                target.copy_(held)
            planner.commit_tensor(item, target)
        return _done(None)

    def _check(self, item, target):
        name = item.storage_index.fqn
        kind = NAMES[self._snapshot.tensors[name][0]]
        if TorchKind.type_of(target) != kind or tuple(target.shape) != tuple(item.lengths):
            raise Refused(f"load {name!r}: it was saved as {kind}, and is to be loaded as {TorchKind.type_of(target)}")

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return "://" not in os.fspath(checkpoint_id)


_writers = {}


def _writer(path, writer, keep):
    """The writer of this folder, kept so that its memory is used again by the next save."""
    key = os.path.abspath(path), os.getpid(), writer, keep
    if key not in _writers:
        _writers[key] = Writer(path, writer, keep)
    return _writers[key]


def _open(path, step):
    with Reader(path) as reader:
        steps = [listed.step for listed in reader.list() if listed.info is not None] if step is None else [step]
        if not steps:
            raise NotFound(f"find a checkpoint in {path}: there is none")
        return Snapshot(reader._native, steps[-1])


def _piece(name, described, tensor):
    """A part of a tensor, or None if it is an empty part of one that isn't."""
    type_name = TorchKind.type_of(tensor)
    refusal = TorchKind.refusal(tensor)
    if refusal is None and type_name not in STORED:
        refusal = f"its elements are of type {type_name}" + ", which gangline.Store takes" * (type_name in RAW)
    if refusal:
        raise Refused(f"save {name!r}: {refusal}")
    if not tensor.numel() and described.size.numel():
        return None
    shape, offsets = list(described.size), list(described.chunk.offsets)
    return Piece(name, STORED[type_name], tuple(tensor.shape), TorchKind.bytes_of(tensor), (shape, offsets))


def _object(planner, item):
    """The value to write. Planners hand out pickles of them: only one that hides the value itself is asked for that."""
    if hasattr(planner, "lookup_object"):
        return planner.lookup_object(item.index)
    return torch.load(planner.resolve_data(item), weights_only=True)


def _array(path, value):
    """numpy arrays are values here: torch's planners don't take them for tensors."""
    if not NumpyKind.is_one(value) and not isinstance(value, numpy.generic):
        return NOT_MINE
    value = numpy.asarray(value)
    if value.dtype.name not in STORED and value.dtype.name not in RAW:
        return NOT_MINE
    data = base64.b64encode(NumpyKind.bytes_of(value)).decode()
    return {TAG: "array", "type": value.dtype.name, "shape": list(value.shape), "base64": data}


def _array_again(path, payload):
    if payload[TAG] != "array":
        return _no_leaf(path, payload)
    data = base64.b64decode(payload["base64"], validate=True)
    return numpy.frombuffer(data, numpy_type(payload["type"])).reshape(payload["shape"]).copy()


def _no_leaf(path, payload):
    raise ValueError("no such kind of value is known")


def _pickled(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return buffer


def _done(value):
    future = Future()
    future.set_result(value)
    return future
