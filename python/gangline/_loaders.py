"""Gives torch's own data loaders a position that can be saved and restored: Lightning expects `state_dict`
and `load_state_dict` of a loader, and torch.utils.data.DataLoader lacks them.

A loader's order follows from the states of the random number generators when its iteration starts. These
states are recorded then. To resume, they are restored, the iteration is started again, and the batches
already trained on are skipped: through the sampler alone if no worker's generators depend on the samples,
otherwise by loading them again.
"""

import collections
import functools
import warnings

import torch
from torch.utils.data import DataLoader, IterableDataset

from . import _random
from ._order import Ordered
from .errors import Refused, ResumeWarning


def resumable(loader, owner):
    """Returns the same loader with a state, if it is one of torch's without; doesn't change the caller's own.

    owner: has `put_back()`, which is called before the first batch is requested; `is_over()`, whether the
        last batch trained on was the last of its epoch; `ahead()`, the number of batches that are loaded but
        not trained on yet.
    """
    if tokens_of(loader) is not None:
        return Positioned(loader, owner)
    if not isinstance(loader, DataLoader) or hasattr(loader, "state_dict"):
        return loader
    _warn(loader)
    made = object.__new__(_class_of(type(loader)))
    made.__dict__.update(loader.__dict__, _owner=owner, _batches=None, _state=None)
    return made


def tokens_of(loader):
    """Returns the Tokens or Rows that a loader gives the batches of: the loader itself, or torch's around them; None if there
    are none."""
    found = loader.dataset if isinstance(loader, DataLoader) else loader
    return found if isinstance(found, Ordered) else None


def is_position(state):
    """Reports whether a loader's state is that of Tokens or Rows, which is the same on all ranks and at any number of them."""
    return isinstance(state, dict) and set(state) == {"version", "data", "order", "sequence_length", "steps", "sample"}


class Positioned:
    """A loader of Tokens or Rows, with the position behind the batches that were trained on. The trainer may have requested
    more; an iteration that it ends early is gone on with from there."""

    # How many batches a trainer requests ahead, at most.
    AHEAD_MAX = 8

    def __init__(self, loader, owner):
        self.loader, self.tokens, self._owner = loader, tokens_of(loader), owner
        self._positions = collections.deque([self.tokens.state_dict()], self.AHEAD_MAX + 1)
        self._trained = None

    def __getattr__(self, name):
        return getattr(self.loader, name)

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        self._owner.put_back()
        if self._trained not in (None, self.tokens.state_dict()):
            self.load_state_dict(self._trained)
        for batch in self.loader:
            self._positions.append(self.tokens.state_dict())
            yield batch

    def trained(self):
        """Notes that the last batch given to the training was trained on."""
        self._trained = self.state_dict()

    def state_dict(self):
        return self._positions[-1 - min(self._owner.ahead(), len(self._positions) - 1)]

    def load_state_dict(self, state):
        self.tokens.load_state_dict(state)
        self._positions.clear()
        self._positions.append(self.tokens.state_dict())
        self._trained = None


def _warn(loader):
    reason = None
    if loader.num_workers and loader.persistent_workers:
        reason = "its workers live on from epoch to epoch (persistent_workers=True), and their generators of random numbers with them"
    elif loader.num_workers and not getattr(loader, "in_order", True):
        reason = "its batches come in no certain order (in_order=False)"
    elif not loader.num_workers and isinstance(loader.dataset, IterableDataset):
        reason = "its dataset is an IterableDataset in this process: what numbers it draws between batches can't be had again"
    if reason is not None:
        text = f"a training that is resumed in the middle of an epoch may see other data than one never stopped: {reason}"
        warnings.warn(text, ResumeWarning, stacklevel=2)


@functools.lru_cache(maxsize=64)
def _class_of(kind):
    return type(f"Resumable{kind.__name__}", (_Resumable, kind), {})


class _Resumable:
    """The members added to a loader."""

    def __iter__(self):
        self._batches = _Batches(self, super().__iter__)
        return self._batches

    def state_dict(self):
        if self._state is not None:
            return self._state  # it hasn't been begun since
        generators = [generator.get_state() for generator in _generators(self)]
        begun = self._batches
        if begun is None or begun.inner is None or self._owner.is_over():
            return {"at": None, "random": None, "generators": generators}
        return {"at": begun.at - self._owner.ahead(), "random": begun.random, "generators": begun.generators}

    def load_state_dict(self, state):
        self._state = state


class _Batches:
    """The batches of an epoch. The iteration starts with the first batch: earlier random draws belong to
    others."""

    def __init__(self, loader, begin):
        self.loader, self.begin = loader, begin
        self.inner, self.at, self.random, self.generators = None, 0, None, None

    def __iter__(self):
        return self

    def __next__(self):
        if self.inner is None:
            self.start()
        batch = next(self.inner)
        self.at += 1
        return batch

    def start(self):
        loader = self.loader
        loader._owner.put_back()
        state, loader._state = loader._state, None
        if state is not None:
            _set_generators(loader, state["generators"])
        if state is None or state["at"] is None:
            return self.begin_here()
        now = _random.states()
        _random.restore(state["random"])
        self.begin_here()
        _pass_over(loader, self.inner, state["at"])
        self.at = state["at"]
        _random.restore(now)

    def begin_here(self):
        # No loader draws from a device's generator.
        self.random = {name: state for name, state in _random.states().items() if name != "cuda"}
        self.generators = [generator.get_state() for generator in _generators(self.loader)]
        self.inner = self.begin()


def _pass_over(loader, inner, count):
    by_index = not loader.num_workers and not isinstance(loader.dataset, IterableDataset) and hasattr(inner, "_next_index")
    for at in range(count):
        try:
            inner._next_index() if by_index else next(inner)
        except StopIteration:
            raise Refused(f"resume: {count} batches of the epoch were trained on, and the data loader has only {at}") from None


def _generators(loader):
    """Returns the generators that were passed to a loader or its samplers, each once."""
    holders = [loader, loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None)]
    found = [getattr(holder, "generator", None) for holder in holders]
    return list({id(one): one for one in found if isinstance(one, torch.Generator)}.values())


def _set_generators(loader, states):
    generators = _generators(loader)
    if len(generators) != len(states):
        raise Refused(f"resume: the data loader had {len(states)} generators of its own, and has {len(generators)}")
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)
