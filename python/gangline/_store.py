"""The store as one process uses it."""

import atexit
import dataclasses
import json
import logging
import os
import sys
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy

from . import _info, _native, _notes
from ._loading import How, Loaded
from ._notes import Note
from ._remote import Remote, folder_of, is_address
from ._retention import Keep, given
from ._save import Save, ask, check_process, unasked, warn_of_retention
from ._snapshot import Snapshot, check_step
from ._state import RESERVED, VALUES, Gathering, Local, Piece, Scattering, own_name
from ._values import path_text
from .errors import (
    ArchiveFailedWarning, Corrupt, Error, Held, NotFound, PartialLoadWarning, Refused, SaveFailedWarning, SkippedWarning
)

if TYPE_CHECKING:
    from typing import Self

# How often a load looks again because what it wanted was pruned under its eyes.
_LOOKS_MAX = 4



class Reader:
    """Checkpoints that are only looked at: opening changes nothing of them. Store is one as well.

    path: the folder, or an archive's address, as for Store.

    Raises IoFailed if there is no such folder.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        self.path = folder_of(os.fspath(path)) if is_address(path) else os.fspath(path)
        """The folder."""
        try:
            self._native = _native.Store(self.path, **options)
        except Held as error:
            advice = "give each run a folder of its own; gangline.Reader looks at this one without writing"
            raise Held(f"{error}: {advice}") from None
        self.loaded: Loaded | None = None
        """What the newest `load` did: its step, what it left out, and whether its bytes are verified."""
        self._process = os.getpid()
        self._place = (0, 1)  # which rank loads, of how many
        self._remote = Remote(self._native, _place(path, None)) if is_address(path) else None

    def latest(self) -> _info.CheckpointInfo | None:
        """The newest save of the current branch whose every byte is as it was saved, as CheckpointInfo; None if there is none.

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

    def branches(self) -> "list[_info.Branch]":
        """The branches of this folder's saves, the current one last.

        A save after an older checkpoint was loaded begins a branch there; one of a lower step than the newest, with nothing loaded,
        begins a branch from nothing. What is not on the way to the newest save is abandoned: never loaded by itself, and never
        removed by itself.
        """
        return _info.branches(self._native.branches())

    def delete(self, step: int) -> None:
        """Removes one checkpoint, of whichever branch. Raises NotFound; Refused if the current branch had no good one left."""
        self._native.delete(check_step(step))

    def prune(
        self,
        *,
        keep: "int | Keep | None" = None,
        above: int | None = None,
        abandoned: bool | str = False,
        dry_run: bool = False,
    ) -> _info.Pruned:
        """Removes checkpoints, or with `dry_run` tells which it would: Pruned. One of these says which:

        keep: of the current branch, all but the newest so many good ones (what is newer than the oldest of these stays, good or not),
            or but what a Keep names. Reads those that stay.
        above: of the current branch, all above this step: training is to go on from there.
        abandoned: True for all abandoned checkpoints, or a branch's name for the abandoned ones of that branch.

        Raises Refused if no good checkpoint of the current branch would be left; for keep < 1; for no such branch.
        """
        asked = [name for name, value in (("keep", keep), ("above", above), ("abandoned", abandoned or None)) if value is not None]
        if len(asked) != 1:
            raise Refused(f"prune: say one of keep, above and abandoned, not {' and '.join(asked) or 'none'}")
        if above is not None:
            return _info.pruned(self._native.prune_above(check_step(above), dry_run))
        if abandoned:
            return _info.pruned(self._native.prune_abandoned(None if abandoned is True else abandoned, dry_run))
        return _info.pruned(self._native.prune(given(keep), dry_run))

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
        only: Iterable[str] | None = None,
        strict: bool = True,
        cast: bool = False,
        verify: str = "all",
        resized: Callable[[tuple, list], Any] | None = None,
    ) -> dict[Any, Any]:
        """Reads a checkpoint and returns the state dict: what Store, DistributedStore or a callback saved, or
        gangline.torch.StorageWriter, whose dicts have text for keys, as torch's planners make it (but for optimizers' states). Of
        weights that were imported, or saved by another program, a flat dict by name.

        step: which one; None for the newest that is good (warning about newer ones that aren't: SkippedWarning).
        into: a state dict whose tensors are read into where they lie, on whatever device; everything else in it is replaced, and it
            is what is returned. Of the checkpoint's top level only the keys that `into` has are read (and plain values, which cost
            nothing); to what lies in them is added what they lack, such as the moments of an optimizer that made no step yet.
            Without `into`, everything is read, and tensors are new, in host memory.
        only: names of what is to be read, keys joined by dots: ["model", "optimizer.state.0"]. All that lies in them is read and
            nothing else; what else `into` has stays as it is.
        strict: False lets `into` and the checkpoint differ. What the checkpoint lacks stays as it is in `into`, with a
            PartialLoadWarning; what `into` lacks is left out, at every level, but an empty dict or list takes all there is.
            `store.loaded` then tells both. A tensor of another shape is refused all the same.
        cast: True converts where `into` has other floating-point numbers than were saved, such as bf16 for fp32, some tensors
            (256 MiB, or one) at a time.
        verify: when bytes are compared with what was saved. "all": before `load` returns. "first": the same, but what this machine
            has read and found good since it was started isn't hashed again while its file's inode, length and times are the
            same; damage that leaves these as they are goes unnoticed. "background": after `load` has returned, by reading the files
            once more; `store.loaded.verified()` waits for it, else the store's next call, or `close`, raises what it found.
        resized: of a PerRank that another number of ranks saved, called with its keys and the values of all these ranks: what it
            returns is loaded (`resized=lambda keys, values: values` loads all). Without it, such a value is refused by name.

        Raises NotFound, Refused (`into` has a key that the checkpoint lacks, or a tensor of another shape or type; nothing
        was read into it), Corrupt (naming file and tensor; tensors of `into` may then hold some of its bytes).
        """
        how = How.of(only, strict, cast, verify)
        self._raise_unverified()
        step = None if step is None else check_step(step)
        self._fetch(step)
        if step is not None:
            return self._load(step, into, (how, resized))
        for _ in range(_LOOKS_MAX):
            is_gone = False
            for candidate in self._native.line():
                try:
                    return self._load(candidate, into, (how, resized))
                except NotFound:
                    is_gone = True  # it has been pruned just now
                    break
                except Corrupt as error:
                    warn_skipped(candidate, error)
            if not is_gone:
                break
        raise NotFound(f"find a good checkpoint in {self.path}: there is none")

    def _load(self, step, into, asked):
        how, resized = asked
        snapshot = Snapshot(self._native, step)
        scattering = Scattering(snapshot, into, self._sharded, how, self._place, resized)
        scattering.plan()
        verification = scattering.fill(snapshot.read)
        self._resumed(step)
        return self._finish(step, scattering, verification)

    def _finish(self, step, scattering, verification):
        """The state dict, with what there is to say of it."""
        state = scattering.finish()
        selection = scattering.selection
        self.loaded = Loaded(step, selection.missing, selection.unexpected, verification)
        if self.loaded.missing:
            names = ", ".join(self.loaded.missing[:8]) + ", ..." * (len(self.loaded.missing) > 8)
            warnings.warn(f"the checkpoint of step {step} has no {names}: left as they were", PartialLoadWarning, stacklevel=4)
        return state

    def _raise_unverified(self, is_waiting=False):
        """Raises what the check of the newest load found, if it has ended badly and nobody has been told."""
        if self.loaded is not None:
            self.loaded.raise_untold(is_waiting)

    def _resumed(self, step):
        """Training goes on from this checkpoint, if it is a writer that has loaded it."""

    @staticmethod
    def _sharded(path, tensor):
        """(The part of a DTensor that is here, where it begins in the whole)."""
        if tensor.device_mesh.size() > 1:
            raise Refused(f"take {path_text(path)}: it is sharded over ranks: use gangline.DistributedStore")
        return tensor.detach().to_local(), [0] * tensor.dim()

    def close(self) -> None:
        """Lets go of the folder. Raises what a check in the background found, after waiting for its end."""
        self._native.close()
        self._raise_unverified(is_waiting=True)

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.close()

    def __repr__(self):
        return f"<gangline.{type(self).__name__} in {self.path!r}>"


class Writer(Reader):
    """What writers have in common: saves under way, and who is told of their ends."""

    def __init__(self, path, writer, keep, commit_timeout=None, archive=None, archive_rate=None, *, compare_all=False, **memory):
        # Gangline's supervisor sets it, and finishes what is copied there when this process dies.
        staging = os.environ.get("GANGLINE_STAGING_DIR") or None
        self._archive = None if archive is None else _place(archive, archive_rate)
        options = {"commit_timeout_seconds": commit_timeout, "staging": staging, "archive": self._archive, "compare_all": compare_all}
        options |= _checked(**memory)
        # So is this, when the job's numbers went bad: what was saved from that step on may hold what made them so.
        below = os.environ.get("GANGLINE_RESTORE_BELOW")
        options["restore_below"] = int(below) if below else None
        # An attempt of a job may take the folder over from one that is still dying; no other run may.
        run = os.environ.get("GANGLINE_JOB_ID") or None
        super().__init__(path, writer=writer, run=run, keep=given(keep), **options)
        self._saves = []
        self._is_closed = False
        _open.add(self)

    def send(self, step, pieces, metadata, values=()):
        """Copies pieces and lets them be written: a Save. `values` are (name, text), and have to be equal on all ranks."""
        step = check_step(step)
        given = [(piece.name, piece.type, list(piece.shape), piece.data, piece.part_of) for piece in pieces]
        notes = (*_notes.texts(metadata or {}), list(values))
        save = Save(step, self._native.save(step, given, notes))
        self._saves.append(save)
        unasked.add(save)
        return save

    def _resumed(self, step):
        self._native.resume_from(step)
    def tell_refusal(self, step, error):
        """Tells the other ranks, which wait for this one's part of a save, that there will be none."""
        self._native.refuse(check_step(step), str(error) or type(error).__qualname__)

    def raise_unasked(self):
        """Raises what made a save fail that nobody asked about, once; warns of retention that failed, once."""
        check_process(self._process)
        self._raise_unverified()
        ended = [save for save in self._saves if save.done()]
        self._saves = [save for save in self._saves if save not in ended]
        for save in ended:
            if save in unasked:
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
        failures = ask(saves) if is_ours else []
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
    keep: how many good checkpoints of the current branch stay after each save; None keeps all; a Keep keeps more by rules.
    archive: s3://bucket/prefix or a folder, to which the newest checkpoint is pushed in the background whenever the push before
        has ended; see `push`. `close` waits for it, and a process that dies is made up for by the next one's store.
    archive_bytes_per_second_max: how much of the network that may take; None for all.
    memory_max: bytes of host memory that copies of saves may take, under way and kept; None for two copies. A save that would take
        more waits until an earlier one is durable; one that takes more by itself is refused.
    keep_memory: True keeps the memory of copies for the next saves, which are several times faster for that, until `close`; False
        gives it back to the system as soon as a save is durable.

    `with gangline.Store(path) as store:` waits at its end until all saves are durable; so does the end of the program.
    What is saved after `load()` follows what was loaded: after an older checkpoint it begins a branch there, and what was saved after
    that one is abandoned (see `branches`). One run writes to a folder at a time.

    Raises Held if another run writes there, Refused, IoFailed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        keep: int | Keep | None = 2,
        *,
        archive: str | None = None,
        archive_bytes_per_second_max: int | None = None,
        memory_max: int | None = None,
        keep_memory: bool = True,
    ) -> None:
        if is_address(path):
            if archive is not None:
                raise Refused(f"open {os.fspath(path)} with archive={archive!r}: it is an archive itself")
            archive = os.fspath(path)
        memory = {"memory_max": memory_max, "keep_memory": keep_memory}
        super().__init__(path, (0, 1, 0), keep, archive=archive, archive_rate=archive_bytes_per_second_max, **memory)

    def save(self, step: int, state_dict: dict[Any, Any], metadata: Mapping[str, Note] | None = None) -> Save:
        """Copies the state, which is all that it waits for, and writes it in the background; returns a Save.

        step: of the training, 0 or more. A checkpoint of the same step is replaced.
        state_dict: nested dicts, lists and tuples of torch tensors (any device), numpy and JAX arrays of any shape,
            None, bool, int, float, complex, str, bytes, sets, torch.Size and torch.dtype. No pickle: what else there is
            is refused, with its path.
        metadata: a few notes, str to str, int, float or bool, 64 KiB in all; `list` and `latest` show them.

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


def _checked(memory_max=None, keep_memory=True):
    """The options about memory, as the store takes them."""
    if memory_max is not None and (not isinstance(memory_max, int) or not 0 < memory_max < 1 << 64):
        raise Refused(f"open the store with memory_max={memory_max!r}: give a number of bytes, or None for two copies")
    return {"memory_max": memory_max, "keep_memory": bool(keep_memory)}


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


def warn_skipped(step, why):
    warnings.warn(f"the checkpoint of step {step} is not good, an older one is taken: {why}", SkippedWarning, stacklevel=3)


# Stores that aren't closed.
_open = weakref.WeakSet()


@atexit.register
def _close_all():
    """At the end of the program: waits for what is under way. A save that failed unasked ends it with status 1."""
    mine = [save for save in unasked if save._process == os.getpid()]
    failures = ask(sorted(mine, key=lambda save: save.step))
    for store in list(_open):
        try:
            store.close()
        except Error as error:
            failures.append(error)
    if failures:
        for error in failures:
            traceback.print_exception(error)
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # nothing else changes the status of a program that is ending
