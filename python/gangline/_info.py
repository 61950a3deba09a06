"""What the store tells of checkpoints."""

import dataclasses
import json
from collections.abc import Mapping


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
    metadata: Mapping[str, str]
    """What was noted beside the state."""
    tensors: Mapping[str, TensorInfo]
    """Its tensors by name, the store's own left out."""


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
    """Steps removed, oldest first."""
    kept: tuple[int, ...]
    """Steps that stay, oldest first."""


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
    names = ("step", "bytes", "world_size", "writer", "content_hash", "metadata")
    return CheckpointInfo(**{name: told[name] for name in names}, tensors=tensors)


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
