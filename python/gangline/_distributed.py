"""The store of the ranks of a gang."""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from . import _report
from ._loading import How
from ._notes import Note
from ._overlap import optimizers_of
from ._per_rank import units
from ._remote import refuse_address
from ._snapshot import Snapshot
from ._state import VALUES, Gathering, Local, Scattering
from ._retention import Keep
from ._pieces import own_bytes, own_pieces
from ._store import Save, Writer, check_step, warn_skipped
from ._values import path_text
from .errors import Corrupt, Error, NotFound, Refused, none_good

# Grows with each attempt of a job, and is equal on its ranks: half-written files of a dead attempt are never
# mixed in.
ATTEMPT = "GANGLINE_ATTEMPT"


class DistributedStore(Writer):
    """A folder of checkpoints that the ranks of a process group write together. Every rank opens it and makes
    every call.

    path: the folder, which all ranks must see; created if missing.
    keep: how many good checkpoints of the current branch stay after each save; None keeps all; a Keep adds
        rules.
    group: a torch.distributed process group with any backend; None is the default group.
    commit_timeout: seconds that ranks wait for each other's part of a save; after that it fails on all of
        them.
    compare: how replicated tensors are compared at each save. "sampled": tensors up to 64 KiB whole, and 64
        samples of 64 bytes of larger ones, which takes no time and finds ranks that have diverged; "all":
        every byte, for which `save` waits. Other values are always compared.
    archive, archive_bytes_per_second_max: as for Store; rank 0 pushes.
    memory_max, keep_memory: as for Store, for each rank.

    Opening is collective, saving isn't: ranks communicate only through the folder, in the background.

    Raises Held if another run writes there, Refused, IoFailed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        keep: int | Keep | None = 2,
        group: Any = None,
        commit_timeout: float = 120.0,
        *,
        archive: str | None = None,
        archive_bytes_per_second_max: int | None = None,
        memory_max: int | None = None,
        keep_memory: bool = True,
        compare: str = "sampled",
    ) -> None:
        import torch.distributed as dist

        refuse_address(path)
        if compare not in ("sampled", "all"):
            raise Refused(f"open {os.fspath(path)} with compare={compare!r}: it is 'sampled' or 'all'")
        self.group = group
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        writer = (self.rank, self.world_size, attempt())
        options = {"memory_max": memory_max, "keep_memory": keep_memory, "compare_all": compare == "all"}
        super().__init__(path, writer, keep, commit_timeout, archive, archive_bytes_per_second_max, **options)
        # Only now has every rank removed the files that it left when it died.
        dist.barrier(group)

    def save(
        self,
        step: int,
        state_dict: dict[Any, Any],
        metadata: Mapping[str, Note] | None = None,
        *,
        stable_until: Any = None,
    ) -> Save:
        """Saves like Store.save. Every rank must make the call, with the same step, keys and metadata.

        `stable_until` is as for Store.save, and may differ by rank.

        DTensors, as FSDP2 and tensor parallelism make them, are written by the ranks that hold the shards.
        All other tensors and values must be equal on all ranks, and are written once. A value that differs by
        rank must be wrapped in a PerRank; states of random number generators (the results of
        torch.get_rng_state(), random.getstate(), numpy.random.get_state() and the like) are recognised and
        kept by rank without one.

        Raises as Store.save; `durable` raises Disagreement or TimedOut on every rank if one saved a different
        state, was refused, failed, or died. Only for a rank that died do the others wait for commit_timeout.
        """
        with _report.checkpoint_phase():
            return self._save(step, state_dict, metadata, stable_until)

    def _save(self, step, state_dict, metadata, stable_until):
        step = check_step(step)
        try:
            self.raise_unasked()
            optimizers = optimizers_of(stable_until)
            gathering = Gathering(self._local, (self.rank, self.world_size), is_gang=True)
            tree = gathering.tree(state_dict)
            pieces = gathering.pieces + own_pieces(gathering) + [own_bytes(VALUES, tree)] * (self.rank == 0)
            values = units(gathering.values)
            _check_metadata(metadata)
        except BaseException as error:
            self.tell_refusal(step, error)
            raise
        return self.send(step, pieces, metadata, values, optimizers)

    def load(
        self,
        step: int | None = None,
        into: dict[Any, Any] | None = None,
        *,
        only: Iterable[str] | None = None,
        strict: bool = True,
        cast: bool = False,
        verify: str = "all",
        resized: Callable[[tuple, list], Any] | None = None,
    ) -> dict[Any, Any]:
        """Loads like Store.load. The call is collective: all ranks load the same checkpoint, or all raise. If
        one refuses, no rank reads anything.

        Of a DTensor in `into` each rank reads what its shard needs, whatever the sharding at the save. A
        tensor that `into` lacks is loaded whole on every rank. Of a PerRank each rank gets the value that the
        same rank had saved. An error that a background check finds is raised on the rank that found it.

        If another number of ranks had saved it, each generator's state is the one that all of them had, or
        else a new one for each rank, derived from theirs; other values of a PerRank are refused by name, or
        made by `resized`: see Store.load.
        """
        import torch.distributed as dist

        how = How.of(only, strict, cast, verify)
        (_, unverified) = self._try(step, self._raise_unverified)
        worst = self._worst(unverified)
        if worst is not None:
            raise worst if unverified is None else unverified
        steps = [self._native.line() if step is None else [check_step(step)]]
        first = 0 if self.group is None else dist.get_global_rank(self.group, 0)
        dist.broadcast_object_list(steps, src=first, group=self.group)
        for candidate in steps[0]:
            (snapshot, scattering), own = self._try(candidate, lambda: self._plan(candidate, into, (how, resized)))
            worst = self._worst(own)
            if worst is None:
                verification, own = self._try(candidate, lambda: scattering.fill(snapshot.read))
                worst = self._worst(own)
            if worst is None:
                self._resumed(candidate)
                return self._finish(candidate, scattering, verification)
            if step is not None or not isinstance(worst, (Corrupt, NotFound)):
                raise worst if own is None else own
            if isinstance(worst, Corrupt):  # else it has been pruned just now
                warn_skipped(candidate, worst)
        raise none_good(self.path)

    def _plan(self, step, into, asked):
        how, resized = asked
        snapshot = Snapshot(self._native, step)
        scattering = Scattering(snapshot, into, self._sharded, how, (self.rank, self.world_size), resized)
        scattering.plan()
        return snapshot, scattering

    def _worst(self, own):
        """Returns the error of the first rank that failed, or None."""
        import torch.distributed as dist

        errors = [None] * self.world_size
        dist.all_gather_object(errors, own, group=self.group)
        return next((error for error in errors if error is not None), None)

    @staticmethod
    def _try(step, act):
        """Returns (the result of `act`, None), or (None, None) and the error."""
        try:
            return act(), None
        except Exception as error:  # whatever it is, the other ranks wait to hear of it
            return (None, None), error if isinstance(error, Error) else Error(f"load step {step}: {error!r}")

    def _local(self, path, kind, tensor):
        if not hasattr(tensor, "to_local"):
            if hasattr(tensor, "local_shards"):
                raise Refused(f"save {path_text(path)}: it is a ShardedTensor: use FSDP2, or its DTensor state dict")
            return Local(tensor, kind.identity(tensor))
        mesh, placements = tensor.device_mesh, tensor.placements
        local, offsets = self._sharded(path, tensor)
        identity = (local.untyped_storage()._cdata, local.storage_offset(), local.stride(), tuple(tensor.shape), placements)
        if not tensor.numel() or mesh.size() == self.world_size and all(one.is_replicate() for one in placements):
            return Local(local.new_empty(tensor.shape) if not tensor.numel() else local, identity)
        coordinate = mesh.get_coordinate()
        is_first = coordinate is not None and not any(
            at for at, placement in zip(coordinate, placements, strict=True) if placement.is_replicate()
        )
        return Local(local, identity, (list(tensor.shape), offsets), is_first and local.numel() > 0)

    @staticmethod
    def _sharded(path, tensor):
        """Returns this rank's part of a DTensor, and its offsets in the whole."""
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        if any(placement.is_partial() for placement in tensor.placements):
            raise Refused(f"take {path_text(path)}: it is a partial sum: redistribute it first")
        local = tensor.detach().to_local()
        shape, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
        if tensor.device_mesh.get_coordinate() is not None and tuple(local.shape) != tuple(shape):
            raise Refused(f"take {path_text(path)}: its shard here has shape {list(local.shape)}, not {list(shape)}")
        return local, list(offsets)


def _check_metadata(metadata):
    for name, value in (metadata or {}).items():
        if type(name) is not str or type(value) is not str:
            raise Refused(f"save metadata {name!r}: names and values are text, not {type(value).__qualname__}")


def attempt():
    """Returns the number of this attempt of the job; 0 if the environment doesn't set it."""
    text = os.environ.get(ATTEMPT, "0")
    if not text.isdecimal():
        raise Refused(f"open the store: {ATTEMPT} is {text!r}, not a number")
    return int(text)
