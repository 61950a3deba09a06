"""Saves whose copy runs on a thread of its own while the training goes on.

A tensor is left to that thread only if its memory belongs to an optimizer, as a parameter or its state: nothing
but an optimizer's step changes it, and every optimizer's step first waits for the copy. Everything else is copied
before `save` returns.

So that other changes don't go unseen, each tensor that was left is compared with what it was, when the caller next
speaks to the save; until then the checkpoint isn't visible. torch's version counters tell of its own operations,
and samples of the bytes of what the counters don't count: fused optimizers, `.data`, numpy, C++.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import os
import sys
import threading
import time
import weakref

import numpy

from . import _native, _report
from ._save import Save, check_process, unasked
from .errors import Refused, TimedOut

# The most names in an error.
_NAMES_MAX = 8
# Tensors that are copied at once begin at multiples of so many bytes, as the native part has it.
_LINE_BYTES = 64
# The saves that steps wait for.
_copying = weakref.WeakSet()


class BufferPool:
    """Buffers for the tensors that are copied at once. They are kept for later saves, as the store's own memory is:
    each page of new memory takes a fault, and the faults take longer than the copy."""

    def __init__(self, is_kept):
        self._is_kept, self._free = is_kept, []

    def take(self, size):
        while self._free:
            buffer = self._free.pop()
            if buffer.size >= size:
                return buffer
        return numpy.empty(size, numpy.uint8)

    def give_back(self, buffer):
        if self._is_kept and buffer.size:
            self._free.append(buffer)


class OverlappedSave(Save):
    """A save whose copy may still be under way: the result of `Store.save` with `stable_until`."""

    def __init__(self, step, begin, deferred):
        super().__init__(step, None)
        self._deferred, self._failed = deferred, None
        self._lock = threading.Lock()
        _wait_before_steps()
        _copying.add(self)
        self._copy = _copier(self._process).submit(begin)

    def staged(self) -> bool:
        if not self._copy.done():
            return False
        self.acknowledge()
        return True

    def copied(self, timeout: float | None = None) -> None:
        check_process(self._process)
        if not self.acknowledge(timeout):
            raise TimedOut(f"wait for step {self.step}: not copied after {timeout} s")
        self._raise_failed()

    def done(self) -> bool:
        check_process(self._process)
        return self.staged() and (self._pending is None or super().done())

    def durable(self, timeout: float | None = None):
        began = time.monotonic()
        self.copied(timeout)
        return super().durable(None if timeout is None else max(0.0, timeout - (time.monotonic() - began)))

    def acknowledge(self, timeout=None):
        """Waits for the copy, and confirms the save unless a tensor has changed since it began: then the save
        fails. Returns false if the copy was still under way after `timeout` seconds."""
        if concurrent.futures.wait([self._copy], timeout).not_done:
            return False
        with self._lock:
            deferred, self._deferred = self._deferred, None
            if deferred is not None:
                self._confirm(deferred)
        return True

    def _confirm(self, deferred):
        _copying.discard(self)
        deferred.pool.give_back(deferred.buffer)
        self._failed = self._copy.exception()
        if self._failed is None:
            changed = deferred.watched.changed()
            self._pending = self._copy.result()
            self._pending.confirm(_listed(changed) if changed else None)

    def _raise_failed(self):
        if self._failed is not None:
            unasked.discard(self)
            raise self._failed


def _listed(names):
    return ", ".join(itertools.islice(names, _NAMES_MAX)) + ", ..." * (len(names) > _NAMES_MAX)


class _Watched:
    """The tensors that are still to be copied, as they were when the save began."""

    def __init__(self, pieces, sharers):
        self.pieces = pieces
        self.sharers = sharers  # of each piece: all tensors in the same memory
        self.versions, self.samples = self._versions(), self._samples()

    def changed(self):
        """Returns the names of those that have changed since."""
        then = zip(self.pieces, self.versions, self.samples, strict=True)
        now = zip(self._versions(), self._samples(), strict=True)
        return [piece.name for (piece, *before), after in zip(then, now, strict=True) if before != [*after]]

    def _versions(self):
        return [[tensor._version for tensor in tensors] for tensors in self.sharers]

    def _samples(self):
        return _native.samples([piece.data for piece in self.pieces])


def optimizers_of(given):
    """Returns the optimizers in `stable_until`, without the wrappers of others; none of None."""
    if given is None:
        return []
    found = []
    for one in given if isinstance(given, (list, tuple)) else [given]:
        while not hasattr(one, "register_step_pre_hook") or type(one).__name__ == "AcceleratedOptimizer":
            one = getattr(one, "optimizer", None)
            if one is None:
                raise Refused(f"save with stable_until={given!r}: give a torch.optim.Optimizer, or a list of them")
        found.append(one)
    return found


@functools.lru_cache(1)
def _copier(process):
    """Returns the thread that copies in this process; a fork has none of its parent's threads. A thread that is
    kept takes a save without holding it up: a new one would be waited for until it runs."""
    return concurrent.futures.ThreadPoolExecutor(1, f"gangline-copy-{process}")


@functools.cache
def _wait_before_steps():
    """Has every optimizer of this process wait, before each of its steps, for the copies under way."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def wait(optimizer, args, kwargs):
        saves = [one for one in _copying if one._process == os.getpid()]
        with _report.checkpoint_phase() if saves else contextlib.nullcontext():
            for save in saves:
                save.acknowledge()

    return register_optimizer_step_pre_hook(wait)


@dataclasses.dataclass
class DeferredCopy:
    """The tensors of a save that its thread still has to copy."""

    pieces: list  # all of the save's; each that others may change is a copy
    watched: _Watched  # the tensors that the thread copies
    buffer: numpy.ndarray  # holds the copies that were made at once
    pool: BufferPool  # takes the buffer back


def defer_copy(pieces, optimizers, pool):
    """Copies the pieces that something other than these optimizers may change, and returns the rest of the copy."""
    owned = {}
    for optimizer in optimizers:
        for tensor in _tensors_of(optimizer):
            memory = _memory_of(tensor)
            if memory is not None:
                owned.setdefault(memory, []).append(tensor)
    made, watched, sharers, at_once = list(pieces), [], [], []
    for index, piece in enumerate(pieces):
        if piece.source is None:
            continue
        tensors = owned.get(_memory_of(piece.source))
        if tensors is None:
            at_once.append(index)
        else:
            watched.append(piece)
            sharers.append([piece.source, *tensors])
    sources = [pieces[index].data for index in at_once]
    buffer = pool.take(sum(-(-source.size // _LINE_BYTES) * _LINE_BYTES for source in sources))
    for index, begin in zip(at_once, _native.pack(buffer, sources), strict=True):
        made[index] = dataclasses.replace(pieces[index], data=buffer[begin : begin + pieces[index].data.size])
    return DeferredCopy(made, _Watched(watched, sharers), buffer, pool)


def _tensors_of(optimizer):
    import torch

    held = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    held += [value for state in optimizer.state.values() for value in state.values()]
    for tensor in held:
        if isinstance(tensor, torch.Tensor):
            yield tensor.detach().to_local() if hasattr(tensor, "to_local") else tensor


def _memory_of(tensor):
    """Returns what all tensors in this memory of the host share; None for those without a version counter."""
    torch = sys.modules["torch"]
    if not isinstance(tensor, torch.Tensor) or not tensor.is_cpu or tensor.is_inference():
        return None
    return tensor.untyped_storage().data_ptr() or None
