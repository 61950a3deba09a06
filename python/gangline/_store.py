"""The store of a single process."""

import atexit
import json
import logging
import os
import sys
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from . import _info, _native, _notes, _origin, _overlap, _report
from ._loading import How, Loaded
from ._notes import Note
from ._remote import Remote, folder_of, is_address
from ._remote import place as _place
from ._retention import Keep, given
from ._save import Save, ask, check_process, unasked, warn_of_retention
from ._snapshot import Snapshot, check_step
from ._pieces import bytes_piece, given_of, own_pieces
from ._state import RESERVED, VALUES, Gathering, Local, Scattering
from ._values import path_text
from .errors import (
    ArchiveFailedWarning, Corrupt, Error, Held, NotFound, PartialLoadWarning, Refused, SaveFailedWarning, SkippedWarning, none_good
)

if TYPE_CHECKING:
    from typing import Self

# How often a load starts again because its checkpoint was pruned meanwhile.
_LOOKS_MAX = 4


class Reader:
    """A folder of checkpoints, opened for reading: opening changes nothing. Store is a subclass.

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
        """The result of the newest `load`: its step, what it left out, and whether its bytes are verified."""
        self._process = os.getpid()
        self._place = (0, 1)  # which rank loads, of how many
        self._remote = Remote(self._native, _place(path, None)) if is_address(path) else None

    def latest(self) -> _info.CheckpointInfo | None:
        """Returns the newest intact save of the current branch, after reading all of it; None if there is
        none. Warns (SkippedWarning) about newer ones that are damaged."""
        self._fetch(None)
        told = json.loads(self._native.latest())
        for skipped in told["skipped"]:
            first = skipped["problems"][0]
            warn_skipped(skipped["step"], f"{first['file']}: {first['flaw']}")
        found = told["checkpoint"]
        return None if found is None else _info.checkpoint_info(json.dumps(found), RESERVED)

    def list(self) -> "list[_info.Listed]":
        """Lists all checkpoints, oldest first. Reads only their manifests."""
        listed = self._native.list()
        as_info = lambda text: None if text is None else _info.checkpoint_info(text, RESERVED)  # noqa: E731
        all_listed = [_info.Listed(step, as_info(text), error) for step, text, error in listed]
        if self._remote is not None:
            here = {one.step for one in all_listed}
            elsewhere = [step for step in self._remote.steps() if step not in here]
            all_listed += [_info.Listed(step, as_info(self._remote.info(step)), None) for step in elsewhere]
        return sorted(all_listed, key=lambda one: one.step)

    def _fetch(self, step):
        """Fetches a checkpoint that may be only in the archive into the folder."""
        if self._remote is not None:
            self._remote.fetch(step)

    def verify(self, step: int) -> _info.VerifyReport:
        """Reads every byte of a checkpoint, and reports what is damaged. Raises NotFound."""
        step = check_step(step)
        self._fetch(step)
        return _info.verify_report(self._native.verify(step))

    def branches(self) -> "list[_info.Branch]":
        """Returns the branches of this folder's saves, the current one last.

        A save after an older checkpoint was loaded begins a branch there; a save of a lower step than the
        newest, with nothing loaded, begins one from nothing. Checkpoints that the newest save doesn't go back
        to are abandoned: never loaded or removed automatically.
        """
        return _info.branches(self._native.branches())

    def delete(self, step: int) -> None:
        """Removes a checkpoint of any branch. Raises NotFound; Refused if the current branch had no good
        one left."""
        self._native.delete(check_step(step))

    def prune(
        self,
        *,
        keep: "int | Keep | None" = None,
        above: int | None = None,
        abandoned: bool | str = False,
        dry_run: bool = False,
    ) -> _info.Pruned:
        """Removes checkpoints, or with `dry_run` only reports them. Takes exactly one of these:

        keep: of the current branch, keeps this many of the newest good ones (and everything newer than the
            oldest of them), or those that a Keep selects. Reads those that stay.
        above: removes all checkpoints of the current branch above this step, from which training is to
            resume.
        abandoned: True removes all abandoned checkpoints; a branch's name removes those of that branch.

        Raises Refused if the current branch would have no good checkpoint left; for keep < 1; for an unknown
        branch.
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
        """Puts a checkpoint into an archive, compressed without loss. Puts only data that the archive lacks.

        archive: s3://bucket/prefix, with the address and keys in the environment or ~/.aws as for AWS's own
            tools (AWS_REGION, AWS_ENDPOINT_URL, AWS_PROFILE, ...), or a folder.
        step: the checkpoint; None for the newest good one.
        bytes_per_second_max: limits the network rate; None for no limit.
        key_file: the file of an encrypted archive's key; None for GANGLINE_ARCHIVE_KEY_FILE of the
            environment.

        The checkpoint is in the archive only once all of it has been put; an interrupted push is continued by
        the next one. One program at a time pushes. Raises NotFound, Corrupt, Unreachable, Refused.
        """
        if step is None:
            newest = self.latest()
            if newest is None:
                raise none_good(self.path)
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
        """Fetches a checkpoint (the archive's newest without a step) into this folder, bit for bit as it was
        pushed.

        The checkpoint appears only once every byte has been checked. Raises as `push`; NoSpace; Refused if
        there is another good checkpoint of that step, which is never replaced.
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
        """Reads a checkpoint and returns the state dict. Of a checkpoint by gangline.torch.StorageWriter,
        dicts have text keys, as torch's planners make them (except for optimizers' states); of weights that
        were imported, or saved by another program, the result is a flat dict by name.

        step: the checkpoint; None for the newest good one, with a SkippedWarning for each newer one that is
            damaged.
        into: a state dict whose tensors are read in place, on any device; everything else in it is replaced,
            and `into` itself is returned. Only its top-level keys are read (and plain values, which cost
            nothing); missing entries below them are added, such as the moments of an optimizer that hasn't
            made a step. Without `into`, everything is read, and tensors are new, in host memory.
        only: names of what to read, keys joined by dots: ["model", "optimizer.state.0"]. Everything below
            these names is read and nothing else; the rest of `into` stays unchanged.
        strict: False lets `into` and the checkpoint differ. What the checkpoint lacks stays unchanged in
            `into`, with a PartialLoadWarning; what `into` lacks is left out, at every level, but an empty
            dict or list takes everything. `store.loaded` then lists both. A tensor of another shape is still
            refused.
        cast: True converts floating-point tensors to the type in `into`, such as fp32 to bf16, in batches of
            256 MiB or one tensor.
        verify: when bytes are compared with what was saved. "all": before `load` returns. "first": also
            before, but a tensor that this machine has read and found good since boot isn't hashed again while
            its file's inode, length and times are unchanged; damage that changes none of these goes
            undetected. "background": after `load` has returned, by reading the files again;
            `store.loaded.verified()` waits for the result, otherwise the store's next call, or `close`,
            raises an error that was found.
        resized: for a PerRank that another number of ranks saved, called with its keys and the values of all
            these ranks; its result is loaded (`resized=lambda keys, values: values` loads all). Without it,
            such a value is refused by name.

        Raises NotFound, Refused (`into` has a key that the checkpoint lacks, or a tensor of another shape or
        type; nothing was read into it), Corrupt (naming file and tensor; `into` may then hold some of its
        bytes).
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
        raise none_good(self.path)

    def _load(self, step, into, asked):
        how, resized = asked
        snapshot = Snapshot(self._native, step)
        scattering = Scattering(snapshot, into, self._sharded, how, self._place, resized)
        scattering.plan()
        verification = scattering.fill(snapshot.read)
        self._resumed(step)
        return self._finish(step, scattering, verification)

    def _finish(self, step, scattering, verification):
        """Returns the state dict, records the result in `loaded`, and warns about missing names."""
        state = scattering.finish()
        selection = scattering.selection
        self.loaded = Loaded(step, selection.missing, selection.unexpected, verification)
        if self.loaded.missing:
            names = ", ".join(self.loaded.missing[:8]) + ", ..." * (len(self.loaded.missing) > 8)
            warnings.warn(f"the checkpoint of step {step} has no {names}: left as they were", PartialLoadWarning, stacklevel=4)
        return state

    def _raise_unverified(self, is_waiting=False):
        """Raises, once, the error that the newest load's check found, if it has ended."""
        if self.loaded is not None:
            self.loaded.raise_untold(is_waiting)

    def _resumed(self, step):
        """Overridden by writers: records that training resumes from this checkpoint."""

    @staticmethod
    def _sharded(path, tensor):
        """Returns the local part of a DTensor, and its offsets in the whole."""
        if tensor.device_mesh.size() > 1:
            raise Refused(f"take {path_text(path)}: it is sharded over ranks: use gangline.DistributedStore")
        return tensor.detach().to_local(), [0] * tensor.dim()

    def close(self) -> None:
        """Closes the folder. Waits for a background check, and raises the error that it found."""
        self._native.close()
        self._raise_unverified(is_waiting=True)

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.close()

    def __repr__(self):
        return f"<gangline.{type(self).__name__} in {self.path!r}>"


class Writer(Reader):
    """Base class of writers: keeps track of saves in flight, and reports how they ended."""

    def __init__(self, path, writer, keep, commit_timeout=None, archive=None, archive_rate=None, *, compare_all=False, **memory):
        # Set by Gangline's supervisor, which finishes the saves copied there when this process dies.
        staging = os.environ.get("GANGLINE_STAGING_DIR") or None
        self._archive = None if archive is None else _place(archive, archive_rate)
        options = {"commit_timeout_seconds": commit_timeout, "staging": staging, "archive": self._archive, "compare_all": compare_all}
        options |= _checked(**memory)
        # Also set by the supervisor, if the job's numbers went bad: saves from that step on may hold the
        # cause.
        below = os.environ.get("GANGLINE_RESTORE_BELOW")
        options["restore_below"] = int(below) if below else None
        # An attempt of a job may take the folder over from one that is still dying; no other run may.
        run = os.environ.get("GANGLINE_JOB_ID") or None
        super().__init__(path, writer=writer, run=run, keep=given(keep), **options)
        self._saves = []
        self._buffers = _overlap.BufferPool(options["keep_memory"])
        self._is_closed, self._is_first = False, writer[0] == 0
        _open.add(self)

    def send(self, step, pieces, metadata, values=(), optimizers=()):
        """Copies pieces, those of `optimizers` in the background, to be written. All ranks must have equal
        `values`: (name, text) pairs."""
        step, notes = check_step(step), (*_notes.texts(_origin.with_origin(metadata)), list(values))
        if optimizers:
            deferred = _overlap.defer_copy(pieces, optimizers, self._buffers)
            given = given_of(deferred.pieces)
            save = _overlap.OverlappedSave(step, lambda: self._native.save_unconfirmed(step, given, notes), deferred)
        else:
            save = Save(step, self._native.save(step, given_of(pieces), notes))
        self._saves.append(save)
        unasked.add(save)
        _report.note_save(save, self.path, self._is_first)
        return save

    def _resumed(self, step):
        self._native.resume_from(step)

    def tell_refusal(self, step, error):
        """Tells the other ranks, which wait for this one's part of a save, that there will be none."""
        self._native.refuse(check_step(step), str(error) or type(error).__qualname__)

    def raise_unasked(self):
        """Raises, once, the error of a failed save nobody asked about; warns, once, of failed retention."""
        check_process(self._process)
        self._raise_unverified()
        self.acknowledge_all()
        ended = [save for save in self._saves if save.done()]
        self._saves = [save for save in self._saves if save not in ended]
        for save in ended:
            if save in unasked:
                save.durable()
            warn_of_retention(save)
        self._warn_of_archive(False)

    def acknowledge_all(self):
        """Waits until all saves are copied, and confirms those whose tensors haven't changed."""
        if self._process == os.getpid():
            for save in self._saves:
                save.acknowledge()

    def wait_archived(self) -> "_info.Pushed | None":
        """Waits until everything to be archived is in the archive. Returns the last push's result, once,
        or None. Raises the push's error: Unreachable, Corrupt, Refused; the next save retries."""
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
        """Waits until all saves are durable, and the newest is archived. Raises the error of a failed save
        whose `durable` wasn't called; warns if the archive couldn't be reached."""
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
    """A folder of checkpoints that this process alone writes. For several ranks: DistributedStore.

    path: the folder, created if missing. Or an archive's address, s3://bucket/prefix: saves are then durable
        in a folder of this machine (below GANGLINE_CACHE_DIR, or ~/.cache/gangline) and go to the archive as
        with `archive`; loads fetch what this machine lacks, so that a run resumes wherever it is started.
    keep: how many good checkpoints of the current branch stay after each save; None keeps all; a Keep adds
        rules.
    archive: s3://bucket/prefix or a folder, to which the newest checkpoint is pushed in the background after
        each push; see `push`. `close` waits for it; if a process dies, the next one's store continues the
        push.
    archive_bytes_per_second_max: limits the network rate of these pushes; None for no limit.
    memory_max: the most bytes of host memory for copies of saves, in flight and kept; None for two copies. A
        save that would exceed it waits for an earlier one; a save that is larger by itself is refused.
    keep_memory: True keeps the memory of copies for later saves until `close`, which makes them several times
        faster; False returns it to the system as soon as a save is durable.

    `with gangline.Store(path) as store:` waits at its end until all saves are durable; so does the end of the
    program. Saves after `load()` follow the loaded checkpoint: after an older one they begin a branch there,
    and those saved after it are abandoned (see `branches`). One run writes to a folder at a time.

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

    def save(
        self,
        step: int,
        state_dict: dict[Any, Any],
        metadata: Mapping[str, Note] | None = None,
        *,
        stable_until: Any = None,
    ) -> Save:
        """Copies the state, and writes it in the background. Waits only for the copy, and returns a Save.

        step: the training step, 0 or more. A checkpoint of the same step is replaced.
        state_dict: nested dicts, lists and tuples of torch tensors (any device), numpy and JAX arrays, None,
            bool, int, float, complex, str, bytes, sets, torch.Size and torch.dtype. There is no pickle: any
            other type is refused, with its path.
        metadata: a few notes, str to str, int, float or bool, 64 KiB in all; `list` and `latest` show them.

        stable_until: the optimizer, or optimizers, whose next step changes the parameters and their state.
            They are then copied beside the next forward and backward pass, and every optimizer's step waits
            for that; all else is copied at once. A tensor that changes otherwise before (call `copied` of the
            result first) fails the save with Changed, and nothing is visible.

        With two saves in flight it first waits for one of them. Raises Refused, Poisoned; or the error of an
        earlier failed save whose `durable` wasn't called.
        """
        with _report.checkpoint_phase():
            self.raise_unasked()
            optimizers = _overlap.optimizers_of(stable_until)
            gathering = Gathering(self._local)
            tree = gathering.tree(state_dict)
            pieces = [*gathering.pieces, bytes_piece(VALUES, tree), *own_pieces(gathering)]
            return self.send(step, pieces, metadata, optimizers=optimizers)

    def _local(self, path, kind, tensor):
        if hasattr(tensor, "to_local"):
            tensor, _ = self._sharded(path, tensor)
        return Local(tensor, kind.identity(tensor))


def _checked(memory_max=None, keep_memory=True):
    if memory_max is not None and not (isinstance(memory_max, int) and 0 < memory_max < 1 << 64):
        raise Refused(f"open the store with memory_max={memory_max!r}: give a number of bytes, or None for two copies")
    return {"memory_max": memory_max, "keep_memory": bool(keep_memory)}


def warn_skipped(step, why):
    warnings.warn(f"the checkpoint of step {step} is not good, an older one is taken: {why}", SkippedWarning, stacklevel=3)


# Stores that aren't closed yet.
_open = weakref.WeakSet()


@atexit.register
def _close_all():
    """Waits, as the program ends, for saves in flight. A failed save that nobody asked about makes it exit
    with 1."""
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
