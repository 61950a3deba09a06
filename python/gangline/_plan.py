"""Rebuilds the tree of values of checkpoints that gangline.torch.StorageWriter wrote, which have no such
tree.

torch's planners name tensors and values by their keys joined by dots, and store the keys separately. Values
are stored one by one, each as bytes under a reserved name.
"""

import json

from . import _values
from ._numbers import renumber
from ._state import RESERVED, array_of
from ._values import TAG
from .errors import Corrupt

OBJECT = RESERVED + "object."
PLAN = RESERVED + "plan"


class _Branch(dict):
    """Children by key: a dict's if the keys are text, a list's if they are integers."""


class _Numbered(_Branch):
    """Children of a dict whose keys may be integers."""


def keys(snapshot, into=None):
    """Returns {name: its keys} as the planners of all ranks had them; the only key of a missing name is the
    name itself.

    Weights that were imported, or saved by a program that isn't Python, have no keys except those of `into`,
    joined by dots.
    """
    if PLAN not in snapshot.tensors:
        return dict(_places((), into))
    found = _values.decode(snapshot.bytes(PLAN), no_leaf, snapshot.where)
    is_path = lambda path: type(path) is tuple and path and all(type(key) in (str, int) for key in path)  # noqa: E731
    if not isinstance(found, dict) or not all(map(is_path, found.values())):
        raise Corrupt(f"read {PLAN!r} of {snapshot.where}: it doesn't map names to keys")
    return found


def _places(path, into):
    if isinstance(into, dict) and all(type(key) is str for key in into):
        for key, child in into.items():
            yield from _places((*path, key), child)
    elif path:
        yield ".".join(path), path


def tree(snapshot, into=None):
    """Returns the text of a tree of values, as `_values.encode` writes it."""
    paths = keys(snapshot, into)
    names = [name.removeprefix(OBJECT) for name in snapshot.tensors if name.startswith(OBJECT) or not name.startswith(RESERVED)]
    root, there = _Branch(), set(names)
    for name in [*(name for name in paths if name in there), *(name for name in names if name not in paths)]:
        _put(root, paths.get(name, (name,)), _leaf(snapshot, name), snapshot.where)
    renumber(root, _Numbered)
    return json.dumps({"version": _values.VERSION, "value": _written(root, snapshot.where)}).encode()


def _leaf(snapshot, name):
    if OBJECT + name in snapshot.tensors:
        return _values.parse(snapshot.bytes(OBJECT + name), snapshot.where)
    return {TAG: "tensor", "as": "torch", "at": name}


def _put(branch, path, leaf, where):
    for key in path[:-1]:
        branch = branch.setdefault(key, _Branch())
        if not isinstance(branch, _Branch):
            raise Corrupt(f"read {PLAN!r} of {where}: {_values.path_text(path)} lies within a value")
    if path[-1] in branch:
        raise Corrupt(f"read {PLAN!r} of {where}: {_values.path_text(path)} is there twice")
    branch[path[-1]] = leaf


def _written(branch, where):
    """Encodes a branch as `_values` does."""
    if not isinstance(branch, _Branch):
        return branch
    children = {key: _written(child, where) for key, child in branch.items()}
    if isinstance(branch, _Numbered):
        return {TAG: "dict", "pairs": [[key, child] for key, child in children.items()]}
    if any(type(key) is int for key in children):
        if set(children) != set(range(len(children))):
            raise Corrupt(f"read {PLAN!r} of {where}: a list has the items {sorted(map(str, children))[:9]}")
        return [children[index] for index in range(len(children))]
    return {TAG: "dict", "pairs": [[key, child] for key, child in children.items()]} if TAG in children else children


def no_leaf(path, payload):
    """Refuses leaves, in trees that have only plain values."""
    raise ValueError("no such kind of value is known")


def array_again(path, payload):
    """Decodes numpy arrays, in trees that have plain values and numpy arrays."""
    return array_of(payload) if payload[TAG] == "array" else no_leaf(path, payload)
