"""Saves whose copy runs on a thread of its own while the training goes on.

A tensor is left to that thread only if its memory belongs to an optimizer, as a parameter or its state: nothing
but an optimizer's step changes it, and every optimizer's step first waits for the copy. Everything else is copied
before `save` returns.

So that other changes don't go unseen, each tensor that was left is compared with what it was, when the caller next
speaks to the save; until then the checkpoint isn't visible. torch's version counters tell of its own operations,
and samples of the bytes of what the counters don't count: fused optimizers, `.data`, numpy, C++.
"""

import dataclasses
import functools
import itertools
import os
import threading
import time
import weakref

import numpy

from . import _native
from ._save import Save, check_process, unasked
from .errors import Refused, TimedOut

# The most names in an error.
_NAMES_MAX = 8
# How many words of eight bytes are compared of a tensor, evenly spaced. Whole ones, for a change may be of the
# exponent alone.
_SAMPLES = 64
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
        self._thread = threading.Thread(target=self._copy, args=(begin,), name="gangline-copy")
        self._thread.start()

    def _copy(self, begin):
        try:
            self._pending = begin()
        except BaseException as error:  # whatever it is, it is raised where it is asked for
            self._failed = error

    def staged(self) -> bool:
        if self._thread.is_alive():
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
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        with self._lock:
            deferred, self._deferred = self._deferred, None
        _copying.discard(self)
        if deferred is None:
            return True
        deferred.pool.give_back(deferred.buffer)
        if self._pending is not None:
            changed = [one.name for one in deferred.watched if one.has_changed()]
            self._pending.confirm(_listed(changed) if changed else None)
        return True

    def _raise_failed(self):
        if self._failed is not None:
            unasked.discard(self)
            raise self._failed


def _listed(names):
    return ", ".join(itertools.islice(names, _NAMES_MAX)) + ", ..." * (len(names) > _NAMES_MAX)


@dataclasses.dataclass
class _Watched:
    """A tensor that is still to be copied."""

    name: str
    data: numpy.ndarray  # its bytes
    tensors: list  # those in the same memory
    versions: list
    sample: bytes

    @classmethod
    def now(cls, piece, tensors):
        return cls(piece.name, piece.data, tensors, _versions(tensors), _sample(piece.data))

    def has_changed(self):
        return self.versions != _versions(self.tensors) or self.sample != _sample(self.data)


def _versions(tensors):
    return [tensor._version for tensor in tensors]


def _sample(data):
    words = data[: len(data) // 8 * 8].view(numpy.uint64)
    return words[:: max(1, len(words) // _SAMPLES)].tobytes() + data[-8:].tobytes()


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


@functools.cache
def _wait_before_steps():
    """Has every optimizer of this process wait, before each of its steps, for the copies under way."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def wait(optimizer, args, kwargs):
        for save in [one for one in _copying if one._process == os.getpid()]:
            save.acknowledge()

    return register_optimizer_step_pre_hook(wait)


@dataclasses.dataclass
class DeferredCopy:
    """The tensors of a save that its thread still has to copy."""

    pieces: list  # all of the save's; each that others may change is a copy
    watched: list  # the tensors that the thread copies
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
    made, watched, at_once = list(pieces), [], []
    for index, piece in enumerate(pieces):
        if _is_copy(piece):
            continue
        memory = _memory_of(piece.source)
        if memory in owned:
            watched.append(_Watched.now(piece, [piece.source, *owned[memory]]))
        else:
            at_once.append(index)
    sources = [pieces[index].data for index in at_once]
    buffer = pool.take(sum(-(-source.size // _LINE_BYTES) * _LINE_BYTES for source in sources))
    for index, begin in zip(at_once, _native.pack(buffer, sources), strict=True):
        made[index] = dataclasses.replace(pieces[index], data=buffer[begin : begin + pieces[index].data.size])
    return DeferredCopy(made, watched, buffer, pool)


def _is_copy(piece):
    """Reports whether a piece's bytes are a copy already, as those of a device's or a transposed tensor."""
    import torch

    if not isinstance(piece.source, torch.Tensor):
        return piece.source is None
    return piece.data.__array_interface__["data"][0] != piece.source.data_ptr()


def _tensors_of(optimizer):
    import torch

    held = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    held += [value for state in optimizer.state.values() for value in state.values()]
    for tensor in held:
        if isinstance(tensor, torch.Tensor):
            yield tensor.detach().to_local() if hasattr(tensor, "to_local") else tensor


def _memory_of(tensor):
    """Returns what all tensors in this memory of the host share; None for those without a version counter."""
    import torch

    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu" or tensor.is_inference():
        return None
    return tensor.untyped_storage().data_ptr() or None
