"""The compiled store. Use `gangline.Store` and its siblings: this is what they are made of, and may change.

Arrays are flat, contiguous numpy arrays of uint8. Every call but `info` releases the GIL while it works.
"""

import os
from collections.abc import Mapping, Sequence

from numpy import uint8
from numpy.typing import NDArray

# Address, settings of S3, bytes a second, file of the key.
_Place = tuple[str, Mapping[str, str], int | None, str | None]

__version__: str

class Pending:
    def done(self) -> bool: ...
    def wait(self, seconds: float | None = None) -> str | None: ...

class Snapshot:
    def info(self) -> str: ...
    def read_into(
        self,
        asked: Sequence[tuple[str, str, Sequence[int], Sequence[int], NDArray[uint8]]],
        verify: str = "all",
        marks: str | None = None,
    ) -> Verification | None: ...

class Verification:
    def wait(self, seconds: float | None = None) -> bool: ...

class Store:
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        writer: tuple[int, int, int] | None = None,
        keep: int | None = None,
        commit_timeout_seconds: float | None = None,
        staging: str | None = None,
        archive: _Place | None = None,
        restore_below: int | None = None,
        memory_max: int | None = None,
        keep_memory: bool = True,
    ) -> None: ...
    def save(
        self,
        step: int,
        tensors: Sequence[tuple[str, str, Sequence[int], NDArray[uint8], tuple[Sequence[int], Sequence[int]] | None]],
        metadata: Mapping[str, str],
    ) -> Pending: ...
    def open_step(self, step: int) -> Snapshot: ...
    def latest(self) -> str: ...
    def list(self) -> list[tuple[int, str | None, str | None]]: ...
    def verify(self, step: int) -> str: ...
    def prune(self, keep: int, is_dry_run: bool) -> str: ...
    def push(self, step: int, place: _Place) -> str: ...
    def pull(self, step: int | None, place: _Place) -> str: ...
    def archive_steps(self, place: _Place) -> list[int]: ...
    def archive_info(self, step: int, place: _Place) -> str: ...
    def archived(self, is_waiting: bool) -> str | None: ...
    def close(self) -> None: ...
