"""What the store tells of checkpoints."""

import dataclasses
import datetime
import json
from collections.abc import Mapping

from ._notes import Note, values


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """One tensor of a checkpoint."""

    type: str
    """The type of its elements by safetensors' name, such as BF16."""
    shape: tuple[int, ...]
    """Its dimensions; the whole tensor's, if it was sharded."""
    bytes: int
    """Its bytes."""


@dataclasses.dataclass(frozen=True)
class CheckpointInfo:
    """A checkpoint, as its manifest tells it."""

    step: int
    """The step it holds the state after."""
    bytes: int
    """Bytes of its files."""
    world_size: int
    """Ranks that wrote it."""
    writer: int
    """The attempt that wrote it."""
    content_hash: str
    """BLAKE3 over its step and tensors, whatever the files. Tensors that were saved in parts, as ranks hold shards of them, count
    part by part: the same state cut in another way has another hash."""
    metadata: Mapping[str, Note]
    """What was noted beside the state, each of the type that it had."""
    saved_at: datetime.datetime | None
    """When it was committed, in UTC; None of one that was saved before this was noted."""
    run: str | None
    """The run that saved it: the job's id under Gangline, or else one of the process's own."""
    branch: str
    """The branch of saves that it belongs to."""
    parent: int | None
    """The step of the save before it on its line, if there was one."""
    tensors: Mapping[str, TensorInfo]
    """Its tensors by name, the store's own left out."""


@dataclasses.dataclass(frozen=True)
class Branch:
    """A branch of a folder's saves."""

    branch: str
    """Its name."""
    is_current: bool
    """Whether training goes on in it."""
    forked_from: int | None
    """The checkpoint that it goes on from, if it began at one."""
    run: str
    """The run that saved the newest of its checkpoints; empty if that wasn't noted."""
    steps: tuple[int, ...]
    """Its checkpoints, oldest first."""
    abandoned: tuple[int, ...]
    """Those of them that the current branch doesn't go back to, oldest first."""
    bytes: int
    """Bytes of its checkpoints."""
    first_saved_at: datetime.datetime
    """When the oldest of them was saved, in UTC."""
    last_saved_at: datetime.datetime
    """When the newest of them was saved, in UTC."""


@dataclasses.dataclass(frozen=True)
class Listed:
    """A checkpoint's folder."""

    step: int
    """The step in its name."""
    info: CheckpointInfo | None
    """What its manifest says; None if that can't be read."""
    error: str | None
    """Why it can't be read."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """Something wrong with a checkpoint."""

    file: str
    """The file it is in."""
    tensor: str | None
    """The tensor it is in, if it is in one."""
    flaw: str
    """What it is."""


@dataclasses.dataclass(frozen=True)
class VerifyReport:
    """What reading every byte of a checkpoint found."""

    step: int
    tensors_good: int
    bytes_good: int
    problems: tuple[Problem, ...]
    """What is wrong; empty if nothing is."""

    @property
    def is_good(self) -> bool:
        """Whether every byte is as it was saved."""
        return not self.problems


@dataclasses.dataclass(frozen=True)
class Pruned:
    """What pruning removed, or would remove."""

    removed: tuple[int, ...]
    """Steps removed, in their order."""
    kept: tuple[int, ...]
    """Steps that stay, in their order."""


@dataclasses.dataclass(frozen=True)
class Pushed:
    """What putting a checkpoint into an archive took."""

    step: int
    was_archived: bool
    """Whether the archive had it already."""
    bytes: int
    """All its bytes."""
    put: int
    """Bytes put into the archive, coded."""


@dataclasses.dataclass(frozen=True)
class Pulled:
    """What came back from an archive."""

    step: int
    bytes: int
    """Bytes of its files."""
    was_there: bool
    """Whether the store had it already, whole and good."""


@dataclasses.dataclass(frozen=True)
class Saved:
    """A durable checkpoint."""

    step: int
    bytes: int
    """Bytes of its files, all ranks together."""
    content_hash: str
    """As in CheckpointInfo."""
    branch: str
    """The branch that it belongs to."""
    began: Mapping[str, Mapping[str, int | None]] | None
    """How it began that branch, if it left another (told on rank 0): {"fork": {"from": step, "beside": step}} at a checkpoint that was
    loaded, {"anew": {"beside": step}} from nothing, beside the newest checkpoint of the branch that was left."""
    removed: tuple[int, ...]
    """Steps that retention removed afterwards (on rank 0)."""
    retention_error: str | None
    """Why retention failed, if it did: the checkpoint is durable all the same. The next save, or `close`, warns of it."""


def checkpoint_info(text: str, reserved: str) -> CheckpointInfo:
    """From the store's JSON."""
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
    """From the store's JSON."""
    as_times = lambda told: {name: _time(told[name]) for name in ("first_saved_at", "last_saved_at")}  # noqa: E731
    as_steps = lambda told: {name: tuple(told[name]) for name in ("steps", "abandoned")}  # noqa: E731
    return [Branch(**{**told, **as_times(told), **as_steps(told)}) for told in json.loads(text)]


def _time(nanoseconds):
    if nanoseconds is None:
        return None
    return datetime.datetime.fromtimestamp(nanoseconds // 1_000 / 1e6, datetime.timezone.utc)


def verify_report(text: str) -> VerifyReport:
    """From the store's JSON."""
    told = json.loads(text)
    problems = tuple(Problem(**problem) for problem in told.pop("problems"))
    return VerifyReport(**told, problems=problems)


def pruned(text: str) -> Pruned:
    """From the store's JSON."""
    told = json.loads(text)
    return Pruned(tuple(told["removed"]), tuple(told["kept"]))


def pushed(text: str) -> Pushed:
    """From the store's JSON."""
    told = json.loads(text)
    return Pushed(**{name: told[name] for name in ("step", "was_archived", "bytes", "put")})


def pulled(text: str) -> Pulled:
    """From the store's JSON."""
    return Pulled(**json.loads(text))


def saved(text: str) -> Saved:
    """From the store's JSON."""
    told = json.loads(text)
    return Saved(**{**told, "removed": tuple(told["removed"])})
