"""Selects what to load from a checkpoint, and reports the result."""

import dataclasses
import os

from ._kinds import kind_of
from ._per_rank import PerRank
from ._order import Ordered
from ._values import path_text
from .errors import Error, Refused, TimedOut

LEFT_OUT = object()
# Stands for a value that is made only after reading.
ANYTHING = object()
VERIFY = ("all", "first", "background")


@dataclasses.dataclass(frozen=True)
class How:
    """The options of a `load`, checked."""

    only: frozenset | None = None
    strict: bool = True
    cast: bool = False
    verify: str = "all"

    @classmethod
    def of(cls, only, strict, cast, verify):
        if verify not in VERIFY:
            raise Refused(f"load with verify={verify!r}: say one of {', '.join(map(repr, VERIFY))}")
        names = None if only is None else frozenset([only] if isinstance(only, str) else only)
        for name in names or ():
            if not isinstance(name, str) or not name:
                raise Refused(f"load only {name!r}: give names, keys joined by dots, such as 'model' or 'optimizer.state.0'")
        return cls(names, bool(strict), bool(cast), verify)


class Loaded:
    """The result of a store's newest `load`: `store.loaded`."""

    def __init__(self, step: int, missing: "list[str]", unexpected: "list[str]", verification=None) -> None:
        self.step = step
        """The step that was loaded."""
        self.missing = tuple(missing)
        """Names in `into` (or `only`) that the checkpoint lacks, with strict=False: keys joined by dots."""
        self.unexpected = tuple(unexpected)
        """Names in the checkpoint that `into` lacks, with strict=False: keys joined by dots. They were
        left out."""
        self._verification = verification
        self._process = os.getpid()
        self._is_told = verification is None

    def verified(self, timeout: float | None = None) -> None:
        """Waits until every byte that was loaded has been compared with what was saved. With
        verify="background" that continues after `load`; otherwise it returns at once.

        timeout: the most seconds to wait; None for no limit.

        Raises Corrupt, on every call, if something isn't what was saved: the loaded state must then not be
        used; TimedOut.
        """
        if self._verification is None or self._process != os.getpid():
            return
        try:
            has_ended = self._verification.wait(timeout)
        except Error:
            self._is_told = True
            raise
        if not has_ended:
            raise TimedOut(f"verify what was loaded of step {self.step}: not done after {timeout} s")
        self._is_told = True

    def raise_untold(self, is_waiting):
        """Raises, once, the error that the check found; with `is_waiting` waits for the check to end."""
        if not self._is_told:
            try:
                self.verified(None if is_waiting else 0.0)
            except TimedOut:
                pass

    def __repr__(self):
        return f"<gangline.Loaded of step {self.step}>"


class Selection:
    """The tensors and values of a checkpoint to load, given by `into` and `only`."""

    def __init__(self, how, into):
        self.how, self.into = how, into
        self.missing, self.unexpected = [], []
        self.met = set()  # of the names in `only`, those that there are

    def takes(self, path):
        """Reports whether the tensor at `path` is to be read."""
        if self.how.only is None:
            return self.is_in_into(path)
        return self.is_named(path) and (self.how.strict or self.is_in_into(path))

    def is_named(self, path):
        """Reports whether `only` names this or a container of it."""
        if self.how.only is None:
            return True
        text = dotted(path)
        ends = [at for at, letter in enumerate(text) if letter == "."] + [len(text)]
        names = {text[:end] for end in ends} & self.how.only
        self.met |= names
        return bool(names)

    def concerns(self, path):
        """Reports whether `only` names this, a container of it, or something in it."""
        return self.is_named(path) or not path or any(name.startswith(dotted(path) + ".") for name in self.how.only)

    def is_in_into(self, path):
        here = self.into
        for depth, key in enumerate(path):
            if isinstance(here, dict):
                is_there = key in here
            elif isinstance(here, (list, tuple)):
                is_there = isinstance(key, int) and key < len(here)
            else:
                break  # it is replaced
            if not is_there:
                return not here or self.adds(depth)
            here = here[key]
        return True

    def adds(self, depth):
        """Reports whether entries that a container of `into` lacks are added to it."""
        return self.how.strict and depth > 0

    def chosen(self, path, saved):
        """Returns `saved` with LEFT_OUT in place of values that `only` doesn't select."""
        if self.how.only is None or saved is LEFT_OUT:
            return saved
        if isinstance(saved, dict) and saved:
            items = {key: self.chosen((*path, key), item) for key, item in saved.items()}
            return type(saved)(items)
        if type(saved) in (list, tuple) and saved:
            return type(saved)(self.chosen((*path, index), item) for index, item in enumerate(saved))
        return saved if self.is_named(path) else LEFT_OUT

    def check_names(self, saved):
        """Refuses names that match nothing, or with strict=False records them."""
        absent = sorted(self.how.only - self.met) if self.how.only is not None else []
        if absent and self.how.strict:
            there = ", ".join(repr(str(key)) for key in list(saved)[:8])
            raise Refused(f"load only {absent[0]!r}: the checkpoint has nothing of that name; at its top it has {there}")
        self.missing += absent

    def check_fits(self, path, into, saved):
        """Refuses an `into` with keys that the checkpoint lacks, or with strict=False records what stays
        unchanged."""
        if saved is LEFT_OUT or saved is ANYTHING or isinstance(into, PerRank):
            return
        if isinstance(into, Ordered):
            return into.check_state_dict(saved)
        if isinstance(into, dict) and isinstance(saved, dict):
            for key in into:
                if key in saved:
                    self.check_fits((*path, key), into[key], saved[key])
                elif self.concerns((*path, key)):
                    self.lacks((*path, key), "the checkpoint has no such key")
            for key in saved.keys() - into.keys():
                without_gaps((*path, key), saved[key] if self.adds_named() else None)
        elif isinstance(into, (list, tuple)) and isinstance(saved, (list, tuple)):
            for index, item in enumerate(into):
                if index < len(saved):
                    self.check_fits((*path, index), item, saved[index])
                elif self.concerns((*path, index)):
                    self.lacks((*path, index), f"the checkpoint has only {len(saved)} items there")
        elif isinstance(into, (dict, list)) or kind_of(into) is not None and kind_of(saved) is None:
            names = type(into).__qualname__, type(saved).__qualname__
            raise Refused(f"load {path_text(path)}: into has a {names[0]}, the checkpoint {names[1]}")

    def adds_named(self):
        """Reports whether entries that `only` names are added even where `into` lacks them."""
        return self.how.only is not None and self.how.strict

    def lacks(self, path, why):
        if self.how.strict:
            raise Refused(f"load {path_text(path)}: {why}")
        self.missing.append(dotted(path))

    def merge(self, path, into, saved):
        """Returns `into` with the loaded values merged into it."""
        if saved is LEFT_OUT:
            return into
        if isinstance(into, Ordered):
            into.load_state_dict(saved)
            return into
        if isinstance(into, dict) and isinstance(saved, dict):
            is_empty = not into
            for key, item in saved.items():
                if key in into:
                    into[key] = self.merge((*path, key), into[key], item)
                elif self.is_added((*path, key), item, is_empty):
                    into[key] = without_gaps((*path, key), item)
            return into
        if isinstance(into, list) and type(saved) is list or type(into) is tuple and type(saved) is tuple:
            items = [self.merge((*path, at), old, saved[at]) if at < len(saved) else old for at, old in enumerate(into)]
            for at in range(len(into), len(saved)):
                if self.is_added((*path, at), saved[at], not into):
                    items.append(without_gaps((*path, at), saved[at]))
            if type(into) is tuple:
                return tuple(items)
            into[:] = items
            return into
        return saved

    def is_added(self, path, item, is_empty):
        if item is LEFT_OUT and (self.how.only is not None or self.how.strict):
            return False
        if self.adds_named():
            return without_gaps(path, item) is not LEFT_OUT
        if is_empty or self.adds(len(path) - 1):
            return True
        if self.how.strict:
            return not has_gaps(item)  # plain values cost nothing
        self.unexpected.append(dotted(path))
        return False


def dotted(path):
    """Joins keys by dots, as `only` names them."""
    return ".".join(map(str, path))


def has_gaps(saved):
    """Reports whether something in it was left out."""
    if isinstance(saved, dict):
        return any(map(has_gaps, saved.values()))
    return saved is LEFT_OUT or isinstance(saved, (list, tuple)) and any(map(has_gaps, saved))


def without_gaps(path, saved):
    """Returns `saved` without what was left out; LEFT_OUT if nothing is left. Refuses a list of which only
    some items were selected."""
    if isinstance(saved, dict) and saved:
        items = {key: without_gaps((*path, key), item) for key, item in saved.items()}
        kept = {key: item for key, item in items.items() if item is not LEFT_OUT}
        return type(saved)(kept) if kept else LEFT_OUT
    if type(saved) in (list, tuple) and saved:
        items = [without_gaps((*path, index), item) for index, item in enumerate(saved)]
        gaps = [item is LEFT_OUT for item in items]
        if any(gaps) and not all(gaps):
            raise Refused(f"load only some items of {path_text(path)}: name all of it, or give an `into` that has it")
        return LEFT_OUT if all(gaps) else type(saved)(items)
    return saved
