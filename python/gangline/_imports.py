"""Reads checkpoints that torch wrote, without running any code in them.

torch's files are pickles, and a pickle is a program. `torch.load(weights_only=True)` runs none: it makes
tensors and plain values and refuses anything else by name. torch itself reads the `.metadata` of a
torch.distributed.checkpoint folder, also a pickle, without that protection; here an unpickler reads it that
knows only the few classes in it.
"""

import collections
import os
import pathlib
import pickle
import re
import zipfile

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint._nested_dict import unflatten_state_dict

from ._info import Saved
from ._numbers import renumber
from ._store import Store
from .errors import Corrupt, IoFailed, Refused

METADATA = ".metadata"
# Metadata of this size describes tens of millions of tensors.
METADATA_BYTES_MAX = 4 << 30
# The classes in the metadata.
CLASSES = {
    (kind.__module__, kind.__qualname__): kind
    for kind in (
        metadata.Metadata, metadata.MetadataIndex, metadata.TensorStorageMetadata, metadata.TensorProperties,
        metadata.BytesStorageMetadata, metadata.ChunkStorageMetadata, metadata.StorageMeta, metadata._MEM_FORMAT_ENCODING,
        filesystem._StorageInfo, torch.Size, collections.OrderedDict, pathlib.PosixPath,
    )
} | {("torch.serialization", "_get_layout"): torch.serialization._get_layout}  # fmt: skip


def import_checkpoint(source: str | os.PathLike[str], store: Store, step: int) -> Saved:
    """Imports a checkpoint that torch wrote into a store, and waits until it is durable there; returns its
    description.

    source: a folder that torch.distributed.checkpoint wrote (`.metadata` and `.distcp` files), by any number
        of ranks; or a file that torch.save wrote (.pt, .pth, .bin, .ckpt).
    store: the destination; its `keep` counts the checkpoint like any other.
    step: the training step, which such files don't record.

    No code in the files is run: if a pickle asks for a class or function other than a tensor or a plain
    value, Refused names it. A folder takes memory for its tensors and for the store's copy of them; a file
    only for the copy, since it is mapped, unless it is in torch's format from before 1.6. Raises as
    Store.save does; Corrupt if it isn't a checkpoint, IoFailed.
    """
    source = pathlib.Path(source)
    state = _from_folder(source) if source.is_dir() else _from_file(source)
    if not isinstance(state, dict):
        raise Refused(f"import {source}: it holds a {type(state).__qualname__}, not a state dict")
    return store.save(step, state, {"imported from": str(source)}).durable()


def _from_file(source):
    try:
        # Only the zip format, torch's since 1.6, can be mapped.
        return torch.load(source, weights_only=True, map_location="cpu", mmap=zipfile.is_zipfile(source))
    except Exception as error:
        raise _told(source, error) from None


def _from_folder(source):
    described = _describe(source / METADATA)
    state = {name: _room(one) for name, one in described.state_dict_metadata.items()}
    reader = dcp.FileSystemReader(source)
    reader.read_metadata = lambda *args, **kwargs: described
    try:
        dcp.load(state, storage_reader=reader, planner=_Planner(), no_dist=True)
    except dcp.CheckpointException as error:
        [cause] = error.failures.values()
        raise _told(source, cause[0] if isinstance(cause, tuple) else cause) from None
    if not described.planner_data:
        return state
    state = unflatten_state_dict(state, described.planner_data)
    renumber(state)
    return state


def _room(described):
    """Allocates the memory to read into."""
    if isinstance(described, metadata.TensorStorageMetadata):
        return torch.empty(described.size, dtype=described.properties.dtype)
    return None


class _Planner(dcp.DefaultLoadPlanner):
    """torch's planner, except for values, which that one unpickles."""

    def __init__(self):
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def load_bytes(self, read_item, value):
        name = read_item.dest_index.fqn
        try:
            self.state_dict[name] = torch.load(value, weights_only=True)
        except pickle.UnpicklingError as error:
            raise Refused(f"{name!r}: {_said(error)}") from None


class _Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        dtype = getattr(torch, name, None) if module == "torch" else None
        if isinstance(dtype, (torch.dtype, torch.layout)):
            return dtype
        if (module, name) not in CLASSES:
            raise Refused(f"its pickle asks for {module}.{name}, which isn't part of a description")
        return CLASSES[module, name]


def _describe(path):
    try:
        if path.stat().st_size > METADATA_BYTES_MAX:
            raise Refused(f"more than {METADATA_BYTES_MAX} bytes")
        with open(path, "rb") as file:
            described = _Unpickler(file).load()
    except Exception as error:
        raise _told(path, error) from None
    if not isinstance(described, metadata.Metadata):
        raise Corrupt(f"import {path}: it describes no checkpoint of torch.distributed.checkpoint")
    return described


def _told(source, error):
    """Converts an error to one of ours that names the source."""
    if isinstance(error, (Refused, pickle.UnpicklingError)):
        return Refused(f"import {source}: {_said(error)}")
    if isinstance(error, OSError):
        return IoFailed(f"import {source}: {error}")
    return Corrupt(f"import {source}: {type(error).__name__}: {_said(error)}")


def _said(error):
    """Returns torch's or the unpickler's message, without torch's advice to disable the protection."""
    asked = re.search(r"GLOBAL (\S+)", str(error))
    if asked:
        return f"its pickle asks for {asked[1]}, which is no tensor and no plain value"
    unpickler = re.search(r"WeightsUnpickler error: (.*)", str(error))
    if unpickler:
        return f"its pickle can't be read: {unpickler[1].strip()}"
    if "weights_only" in str(error):
        return "its pickle holds more than tensors and plain values"
    return (str(error).splitlines() or [repr(error)])[0].strip()
