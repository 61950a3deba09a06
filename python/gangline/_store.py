"""The store as one process uses it."""

import atexit
import dataclasses
import json
import logging
import operator
import os
import sys
import traceback
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy

from . import _info, _native, _plan
from ._remote import Remote, folder_of, is_address
from ._state import RESERVED, VALUES, Gathering, Local, Piece, Scattering, Wanted, own_name
from ._values import BYTES_MAX, path_text
from .errors import (
    ArchiveFailedWarning, Corrupt, Error, NotFound, Refused, RetentionFailedWarning, SaveFailedWarning, SkippedWarning, TimedOut
)

if TYPE_CHECKING:
    from typing import Self


class Save:
    """A save under way: what `Store.save` returns."""

    def __init__(self, step: int, pending: _native.Pending) -> None:
        self.step = step
        """The step being saved."""
        self._pending = pending
        self._process = os.getpid()
        self._retention_error = None

    def staged(self) -> bool:
        """Whether the state is copied, so that it may change. It is by the time `save` returns."""
        return True

    def done(self) -> bool:
        """Whether the save has ended, well or not. Never waits."""
        check_process(self._process)
        return self._pending.done()

    def durable(self, timeout: float | None = None) -> _info.Saved:
        """Waits until the checkpoint is on disk, synced, and visible to `latest`; what there is then.

        timeout: seconds to wait at most; None waits as long as it takes.
        Raises TimedOut if that passed (ask again), or what made the save fail, each time it is asked.
        """
        check_process(self._process)
        try:
            told = self._pending.wait(timeout)
        except Error:
            _unasked.discard(self)
            raise
        if told is None:
            raise TimedOut(f"wait for step {self.step}: not durable after {timeout} s")
        _unasked.discard(self)
        saved = _info.saved(told)
        self._retention_error = saved.retention_error
        return saved

    def __repr__(self):
        return f"<gangline.Save of step {self.step}>"


def check_step(step):
    """A step as the store counts it."""
    try:
        number = operator.index(step)
    except TypeError:
        raise Refused(f"take {step!r} as a step: it is a {type(step).__qualname__}, not an integer") from None
    if not 0 <= number < 1 << 64:
        raise Refused(f"take {step!r} as a step: steps are from 0 to 2^64 - 1")
    return number


def check_process(opened_by):
    """A forked child has no writing thread, and would wait for ever."""
    if opened_by != os.getpid():
        raise Refused("use a store in a forked process: open it again there")


class Snapshot:
    """A checkpoint opened for reading."""

    def __init__(self, native, step):
        self.where = f"the checkpoint of step {step}"
        self._native = native.open_step(check_step(step))
        told = json.loads(self._native.info())
        self.tensors = {tensor["name"]: (tensor["data_type"], tuple(tensor["shape"])) for tensor in told["tensors"]}

    def values(self, into=None):
        """The text of the tree of values. If none was saved, it is made of the tensors' names, and of where they are in `into`."""
        return self.bytes(VALUES) if VALUES in self.tensors else _plan.tree(self, into)

    def bytes(self, name):
        """All bytes of a tensor."""
        kind, shape = self.tensors[name]
        if kind != "U8" or len(shape) != 1 or shape[0] > BYTES_MAX:
            raise Corrupt(f"read {self.where}: {name!r} is not a string of at most {BYTES_MAX} bytes")
        room = numpy.empty(shape, numpy.uint8)
        self.read([Wanted(name, (0,), shape, room)])
        return room.tobytes()

    def read(self, wanted):
        """Reads boxes of tensors, several at once, checking every byte."""
        asked = [(one.name, self.tensors[one.name][0], list(one.offsets), list(one.shape), one.room) for one in wanted]
        self._native.read_into(asked)


class Reader:
    """Checkpoints that are only looked at: opening changes nothing of them. Store is one as well.

    path: the folder, or an archive's address, as for Store.

    Raises IoFailed if there is no such folder.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        self.path = folder_of(os.fspath(path)) if is_address(path) else os.fspath(path)
        """The folder."""
        self._native = _native.Store(self.path, **options)
        self._below = options.get("restore_below")
        self._process = os.getpid()
        self._place = (0, 1)  # which rank loads, of how many
        self._remote = Remote(self._native, _place(path, None)) if is_address(path) else None

    def latest(self) -> _info.CheckpointInfo | None:
        """The newest checkpoint whose every byte is as it was saved, as CheckpointInfo; None if there is none.

        Reads all of it. Warns (SkippedWarning) about newer ones that aren't good.
        """
        self._fetch(None)
        told = json.loads(self._native.latest())
        for skipped in told["skipped"]:
            first = skipped["problems"][0]
            warn_skipped(skipped["step"], f"{first['file']}: {first['flaw']}")
        found = told["checkpoint"]
        return None if found is None else _info.checkpoint_info(json.dumps(found), RESERVED)

    def list(self) -> "list[_info.Listed]":
        """All checkpoints, oldest first, by their manifests alone: a list of Listed."""
        listed = self._native.list()
        as_info = lambda text: None if text is None else _info.checkpoint_info(text, RESERVED)  # noqa: E731
        all_listed = [_info.Listed(step, as_info(text), error) for step, text, error in listed]
        if self._remote is not None:
            here = {one.step for one in all_listed}
            elsewhere = [step for step in self._remote.steps() if step not in here]
            all_listed += [_info.Listed(step, as_info(self._remote.info(step)), None) for step in elsewhere]
        return sorted(all_listed, key=lambda one: one.step)

    def _fetch(self, step):
        """Has a checkpoint in the folder that may be only in the archive."""
        if self._remote is not None:
            self._remote.fetch(step)

    def verify(self, step: int) -> _info.VerifyReport:
        """Reads every byte of a checkpoint and names what is wrong: a VerifyReport. Raises NotFound."""
        step = check_step(step)
        self._fetch(step)
        return _info.verify_report(self._native.verify(step))

    def prune(self, *, keep: int, dry_run: bool = False) -> _info.Pruned:
        """Removes all but the newest `keep` good checkpoints, or with `dry_run` tells which it would: Pruned.

        What is newer than the oldest of these stays, good or not. Reads those that stay. Raises Refused for keep < 1.
        """
        return _info.pruned(self._native.prune(keep, dry_run))

    def push(
        self,
        archive: str,
        step: int | None = None,
        *,
        bytes_per_second_max: int | None = None,
        key_file: str | os.PathLike[str] | None = None,
    ) -> _info.Pushed:
        """Puts a checkpoint into an archive, coded without loss and without what is there already: a Pushed.

        archive: s3://bucket/prefix, with the address and keys in the environment or ~/.aws as for AWS's own tools
            (AWS_REGION, AWS_ENDPOINT_URL, AWS_PROFILE, ...), or a folder.
        step: which one; None for the newest that is good.
        bytes_per_second_max: how much of the network it may take; None for all.
        key_file: the file of an encrypted archive's key; None for what GANGLINE_ARCHIVE_KEY_FILE in the environment says.

        It is in the archive only once all of it has been put, and what is interrupted goes on where it was. One program at a
        time pushes to an archive. Raises NotFound, Corrupt, Unreachable, Refused.
        """
        if step is None:
            newest = self.latest()
            if newest is None:
                raise NotFound(f"find a good checkpoint in {self.path}: there is none")
            step = newest.step
        step = check_step(step)
        return _info.pushed(self._native.push(step, _place(archive, bytes_per_second_max, key_file)))

    def pull(
        self,
        archive: str,
        step: int | None = None,
        *,
        bytes_per_second_max: int | None = None,
        key_file: str | os.PathLike[str] | None = None,
    ) -> _info.Pulled:
        """Brings a checkpoint (the archive's newest without a step) into this folder, bit for bit what was pushed: a Pulled.

        It has its name only once every byte has been checked. Raises as `push`; NoSpace; Refused if there is another good one of
        that step, which is never replaced.
        """
        step = None if step is None else check_step(step)
        return _info.pulled(self._native.pull(step, _place(archive, bytes_per_second_max, key_file)))

    def load(
        self,
        step: int | None = None,
        into: dict[Any, Any] | None = None,
        *,
        resized: Callable[[tuple, list], Any] | None = None,
    ) -> dict[Any, Any]:
        """Reads a checkpoint, checking every byte, and returns the state dict: what Store, DistributedStore or a callback saved, or
        gangline.torch.StorageWriter, whose dicts have text for keys, as torch's planners make it (but for optimizers' states). Of
        weights that were imported, or saved by another program, a flat dict by name.

        step: which one; None for the newest that is good (warning about newer ones that aren't: SkippedWarning).
        into: a state dict whose tensors are read into where they lie, on whatever device; everything else in it is
            replaced, what it lacks is added, and it is what is returned. Without it, tensors are new, in host memory.
        resized: of a PerRank that another number of ranks saved, called with its keys and the values of all these ranks: what it
            returns is loaded (`resized=lambda keys, values: values` loads all). Without it, such a value is refused by name.

        Raises NotFound, Refused (`into` has a key that the checkpoint lacks, or a tensor of another shape or type; nothing
        was read into it), Corrupt (naming file and tensor; tensors of `into` may then hold some of its bytes).
        """
        step = None if step is None else check_step(step)
        self._fetch(step)
        if step is not None:
            return self._load(step, into, resized)
        for listed in reversed(self._native.list()):
            if self._below is not None and listed[0] >= self._below:
                continue
            try:
                return self._load(listed[0], into, resized)
            except NotFound:
                continue  # it has been pruned just now
            except Corrupt as error:
                warn_skipped(listed[0], error)
        raise NotFound(f"find a good checkpoint in {self.path}: there is none")

    def _load(self, step, into, resized):
        snapshot = Snapshot(self._native, step)
        scattering = Scattering(snapshot, into, self._sharded, place=self._place, resized=resized)
        snapshot.read(scattering.plan())
        return scattering.finish()

    @staticmethod
    def _sharded(path, tensor):
        """(The part of a DTensor that is here, where it begins in the whole)."""
        if tensor.device_mesh.size() > 1:
            raise Refused(f"take {path_text(path)}: it is sharded over ranks: use gangline.DistributedStore")
        return tensor.detach().to_local(), [0] * tensor.dim()

    def close(self) -> None:
        """Lets go of the folder."""
        self._native.close()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.close()

    def __repr__(self):
        return f"<gangline.{type(self).__name__} in {self.path!r}>"


class Writer(Reader):
    """What writers have in common: saves under way, and who is told of their ends."""

    def __init__(self, path, writer, keep, commit_timeout=None, archive=None, archive_rate=None, compare_all=False):
        # Gangline's supervisor sets it, and finishes what is copied there when this process dies.
        staging = os.environ.get("GANGLINE_STAGING_DIR") or None
        self._archive = None if archive is None else _place(archive, archive_rate)
        options = {"commit_timeout_seconds": commit_timeout, "staging": staging, "archive": self._archive, "compare_all": compare_all}
        # So is this, when the job's numbers went bad: what was saved from that step on may hold what made them so.
        below = os.environ.get("GANGLINE_RESTORE_BELOW")
        options["restore_below"] = int(below) if below else None
        super().__init__(path, writer=writer, keep=keep, **options)
        self._saves = []
        self._is_closed = False
        _open.add(self)

    def send(self, step, pieces, metadata, values=()):
        """Copies pieces and lets them be written: a Save. `values` are (name, text), and have to be equal on all ranks."""
        step = check_step(step)
        given = [(piece.name, piece.type, list(piece.shape), piece.data, piece.part_of) for piece in pieces]
        save = Save(step, self._native.save(step, given, dict(metadata or {}), list(values)))
        self._saves.append(save)
        _unasked.add(save)
        return save

    def tell_refusal(self, step, error):
        """Tells the other ranks, which wait for this one's part of a save, that there will be none."""
        self._native.refuse(check_step(step), str(error) or type(error).__qualname__)

    def raise_unasked(self):
        """Raises what made a save fail that nobody asked about, once; warns of retention that failed, once."""
        check_process(self._process)
        ended = [save for save in self._saves if save.done()]
        self._saves = [save for save in self._saves if save not in ended]
        for save in ended:
            if save in _unasked:
                save.durable()
            warn_of_retention(save)
        self._warn_of_archive(False)

    def wait_archived(self) -> "_info.Pushed | None":
        """Waits until what is to go to the archive is there; what the last push did, or None if you have been told, or if there was
        nothing to do. Raises what made it fail: Unreachable, Corrupt, Refused; the next save tries again."""
        told = self._native.archived(True)
        return None if told is None else _info.pushed(told)

    def _warn_of_archive(self, is_waiting):
        if self._archive is None:
            return
        try:
            self._native.archived(is_waiting)
        except Error as error:
            text = f"the newest checkpoint isn't in the archive {self._archive[0]}: {error}"
            warnings.warn(text, ArchiveFailedWarning, stacklevel=4)

    def close(self) -> None:
        """Waits until all saves are durable, and the newest is in the archive if there is one. Raises what made a save fail whose
        `durable` nobody asked; warns if the archive couldn't be reached."""
        _open.discard(self)
        saves, self._saves = self._saves, []
        is_ours = self._process == os.getpid()
        failures = _ask(saves) if is_ours else []
        if is_ours and not self._is_closed:
            self._warn_of_archive(True)
        self._is_closed = True
        super().close()
        if failures:
            raise failures[0]

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            return self.close()
        try:
            self.close()
        except Error as failed:
            warnings.warn(f"a save failed: {failed}", SaveFailedWarning, stacklevel=2)


class Store(Writer):
    """A folder of checkpoints that this process alone writes. For many ranks: DistributedStore.

    path: the folder; it is made if it isn't there. Or an archive's address, s3://bucket/prefix: what is saved is durable in a folder
        of this machine (below GANGLINE_CACHE_DIR, or ~/.cache/gangline) and goes to the archive as with `archive`; what is loaded
        comes from there if this machine hasn't got it, so that a run goes on wherever it is started.
    keep: how many good checkpoints stay after each save; None keeps all.
    archive: s3://bucket/prefix or a folder, to which the newest checkpoint is pushed in the background whenever the push before
        has ended; see `push`. `close` waits for it, and a process that dies is made up for by the next one's store.
    archive_bytes_per_second_max: how much of the network that may take; None for all.

    `with gangline.Store(path) as store:` waits at its end until all saves are durable; so does the end of the program.
    Raises Refused, IoFailed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        keep: int | None = 2,
        *,
        archive: str | None = None,
        archive_bytes_per_second_max: int | None = None,
    ) -> None:
        if is_address(path):
            if archive is not None:
                raise Refused(f"open {os.fspath(path)} with archive={archive!r}: it is an archive itself")
            archive = os.fspath(path)
        super().__init__(path, (0, 1, 0), keep, archive=archive, archive_rate=archive_bytes_per_second_max)

    def save(self, step: int, state_dict: dict[Any, Any], metadata: Mapping[str, str] | None = None) -> Save:
        """Copies the state, which is all that it waits for, and writes it in the background; returns a Save.

        step: of the training, 0 or more. A checkpoint of the same step is replaced.
        state_dict: nested dicts, lists and tuples of torch tensors (any device), numpy and JAX arrays of any shape,
            None, bool, int, float, complex, str, bytes, sets, torch.Size and torch.dtype. No pickle: what else there is
            is refused, with its path.
        metadata: a few notes, str to str, 64 KiB in all; `list` and `latest` show them.

        With two saves under way it waits for one of them first. Raises Refused, Poisoned; or what made an earlier save
        fail whose `durable` nobody asked.
        """
        self.raise_unasked()
        gathering = Gathering(self._local)
        tree = gathering.tree(state_dict)
        return self.send(step, [*gathering.pieces, bytes_piece(VALUES, tree), *own_pieces(gathering)], metadata)

    def _local(self, path, kind, tensor):
        if hasattr(tensor, "to_local"):
            tensor, _ = self._sharded(path, tensor)
        return Local(tensor, kind.identity(tensor))


def _place(address, rate, key_file=None):
    """An archive and how it is reached."""
    is_setting = lambda name, value: (name.startswith("AWS_") or name == "HOME") and value.isascii()  # noqa: E731
    settings = {name: value for name, value in os.environ.items() if is_setting(name, value)}
    key_file = key_file or os.environ.get("GANGLINE_ARCHIVE_KEY_FILE") or None
    return os.fspath(address), settings, rate, None if key_file is None else os.fspath(key_file)


def bytes_piece(name, data):
    """Bytes as a tensor."""
    return Piece(name, "U8", (len(data),), numpy.frombuffer(data, numpy.uint8))


def own_bytes(name, data):
    """Bytes of this rank's alone, as a tensor."""
    return dataclasses.replace(bytes_piece(name, data), part_of=([len(data)], [0]))


def own_pieces(gathering):
    """The tree of the values that this rank has its own of, if there are any."""
    tree = gathering.own_values()
    return [] if tree is None else [own_bytes(own_name(gathering.place[0]), tree)]


def warn_of_retention(save):
    if save._retention_error is not None:
        text = f"step {save.step} is durable, but older checkpoints couldn't be removed: {save._retention_error}"
        warnings.warn(text, RetentionFailedWarning, stacklevel=4)


def warn_skipped(step, why):
    warnings.warn(f"the checkpoint of step {step} is not good, an older one is taken: {why}", SkippedWarning, stacklevel=3)


# Saves whose outcome nobody was told, and stores that aren't closed. A store lets go of a save at the next one after its end.
_unasked = set()
_open = weakref.WeakSet()


def _ask(saves):
    """Waits for these saves; the errors of those that failed and that nobody had asked about."""
    failures = []
    for save in saves:
        is_told = save not in _unasked
        try:
            save.durable()
        except Error as error:
            failures.extend([] if is_told else [error])
        warn_of_retention(save)
    return failures


@atexit.register
def _close_all():
    """At the end of the program: waits for what is under way. A save that failed unasked ends it with status 1."""
    mine = [save for save in _unasked if save._process == os.getpid()]
    failures = _ask(sorted(mine, key=lambda save: save.step))
    for store in list(_open):
        store.close()
    if failures:
        for error in failures:
            traceback.print_exception(error)
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # nothing else changes the status of a program that is ending
