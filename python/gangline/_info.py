"""Descriptions of checkpoints that the store returns."""

import dataclasses
import datetime
import json
from collections.abc import Mapping

from ._notes import Note, values


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """A tensor of a checkpoint."""

    type: str
    """The type of its elements by safetensors' name, such as BF16."""
    shape: tuple[int, ...]
    """Its dimensions; the whole tensor's, if it was sharded."""
    bytes: int
    """Its size in bytes."""


@dataclasses.dataclass(frozen=True)
class CheckpointInfo:
    """The description of a checkpoint, from its manifest."""

    step: int
    """The step after which the state was saved."""
    bytes: int
    """The total size of its files."""
    world_size: int
    """The number of ranks that wrote it."""
    writer: int
    """The attempt that wrote it."""
    content_hash: str
    """BLAKE3 hash over its step and tensors, independent of the files. Sharded tensors are hashed part by
    part: the same state with another sharding has another hash."""
    metadata: Mapping[str, Note]
    """Metadata saved with the state, each value with its original type."""
    saved_at: datetime.datetime | None
    """When it was committed, in UTC; None for checkpoints from before this was recorded."""
    run: str | None
    """The run that saved it: the job's id under Gangline, otherwise a random name of the process."""
    branch: str
    """The branch of saves that it belongs to."""
    parent: int | None
    """The step of the previous save on its line, if there was one."""
    tensors: Mapping[str, TensorInfo]
    """Its tensors by name, without the store's own."""


@dataclasses.dataclass(frozen=True)
class Branch:
    """A branch of a folder's saves."""

    branch: str
    """The branch's id."""
    is_current: bool
    """Whether it is the current branch."""
    forked_from: int | None
    """The checkpoint at which it forked, if any."""
    run: str
    """The run that saved its newest checkpoint; empty if that wasn't recorded."""
    steps: tuple[int, ...]
    """Its checkpoints, oldest first."""
    abandoned: tuple[int, ...]
    """Those of its checkpoints that the current branch doesn't go back to, oldest first."""
    bytes: int
    """The total size of its checkpoints."""
    first_saved_at: datetime.datetime
    """When its oldest checkpoint was saved, in UTC."""
    last_saved_at: datetime.datetime
    """When its newest checkpoint was saved, in UTC."""


@dataclasses.dataclass(frozen=True)
class Listed:
    """A checkpoint's folder."""

    step: int
    """The step in the folder's name."""
    info: CheckpointInfo | None
    """The content of its manifest; None if that can't be read."""
    error: str | None
    """Why the manifest can't be read."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """A defect of a checkpoint."""

    file: str
    """The file."""
    tensor: str | None
    """The tensor, if the defect is within one."""
    flaw: str
    """The defect."""


@dataclasses.dataclass(frozen=True)
class VerifyReport:
    """The result of reading every byte of a checkpoint."""

    step: int
    tensors_good: int
    bytes_good: int
    problems: tuple[Problem, ...]
    """What is wrong; empty if the checkpoint is good."""

    @property
    def is_good(self) -> bool:
        """Reports whether every byte is as it was saved."""
        return not self.problems


@dataclasses.dataclass(frozen=True)
class Pruned:
    """The result of pruning, or of a dry run."""

    removed: tuple[int, ...]
    """Steps removed, in order."""
    kept: tuple[int, ...]
    """Steps that stay, in order."""


@dataclasses.dataclass(frozen=True)
class Pushed:
    """The result of a push to an archive."""

    step: int
    was_archived: bool
    """Whether the archive already had it."""
    bytes: int
    """The total bytes."""
    put: int
    """Bytes put into the archive, after coding."""


@dataclasses.dataclass(frozen=True)
class Pulled:
    """The result of a pull from an archive."""

    step: int
    bytes: int
    """The total size of its files."""
    was_there: bool
    """Whether the store already had it, whole and good."""


@dataclasses.dataclass(frozen=True)
class Saved:
    """A durable checkpoint."""

    step: int
    bytes: int
    """The total size of its files, over all ranks."""
    content_hash: str
    """As in CheckpointInfo."""
    branch: str
    """The branch that it belongs to."""
    began: Mapping[str, Mapping[str, int | None]] | None
    """How it began its branch, if it left another (only on rank 0): {"fork": {"from": step, "beside":
    step}} at a checkpoint that was loaded, {"anew": {"beside": step}} from nothing; "beside" is the newest
    checkpoint of the branch that was left."""
    removed: tuple[int, ...]
    """Steps that retention removed afterwards (only on rank 0)."""
    retention_error: str | None
    """Why retention failed, if it did: the checkpoint is durable all the same. The next save, or `close`,
    warns of it."""


def checkpoint_info(text: str, reserved: str) -> CheckpointInfo:
    """Parses the store's JSON."""
    told = json.loads(text)
    tensors = {
        tensor["name"]: TensorInfo(tensor["data_type"], tuple(tensor["shape"]), tensor["bytes"])
        for tensor in told["tensors"]
        if not tensor["name"].startswith(reserved)
    }
    names = ("step", "bytes", "world_size", "writer", "content_hash", "run", "branch", "parent")
    metadata = values(told["metadata"], told["metadata_types"])
    plain = {name: told[name] for name in names}
    return CheckpointInfo(**plain, metadata=metadata, saved_at=_time(told["saved_at"]), tensors=tensors)


def branches(text: str) -> list[Branch]:
    """Parses the store's JSON."""
    as_times = lambda told: {name: _time(told[name]) for name in ("first_saved_at", "last_saved_at")}  # noqa: E731
    as_steps = lambda told: {name: tuple(told[name]) for name in ("steps", "abandoned")}  # noqa: E731
    return [Branch(**{**told, **as_times(told), **as_steps(told)}) for told in json.loads(text)]


def _time(nanoseconds):
    if nanoseconds is None:
        return None
    return datetime.datetime.fromtimestamp(nanoseconds // 1_000 / 1e6, datetime.timezone.utc)


def verify_report(text: str) -> VerifyReport:
    """Parses the store's JSON."""
    told = json.loads(text)
    problems = tuple(Problem(**problem) for problem in told.pop("problems"))
    return VerifyReport(**told, problems=problems)


def pruned(text: str) -> Pruned:
    """Parses the store's JSON."""
    told = json.loads(text)
    return Pruned(tuple(told["removed"]), tuple(told["kept"]))


def pushed(text: str) -> Pushed:
    """Parses the store's JSON."""
    told = json.loads(text)
    return Pushed(**{name: told[name] for name in ("step", "was_archived", "bytes", "put")})


def pulled(text: str) -> Pulled:
    """Parses the store's JSON."""
    return Pulled(**json.loads(text))


def saved(text: str) -> Saved:
    """Parses the store's JSON."""
    told = json.loads(text)
    return Saved(**{**told, "removed": tuple(told["removed"])})
