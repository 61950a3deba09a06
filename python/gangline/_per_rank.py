"""Values that differ by rank. Rank r's values are stored as one tree of bytes under a reserved name, by
their paths in the state dict, and their tensors separately. The tree that all ranks share only marks their
places."""

import json
from collections import deque
from typing import Any

from ._values import TAG, path_text

RANKS_MAX = 65_536
# The most values that ranks compare one by one; if there are more, several are compared together.
UNITS_MAX = 2_048


class PerRank:
    """A value in a saved state dict that differs by rank, such as a data loader's position.

        store.save(step, {"model": model.state_dict(), "loader": gangline.PerRank(loader.state_dict())})

    It is loaded without the wrapper: each rank gets the value that the same rank had saved. If another number
    of ranks loads it, its meaning isn't known: `load` refuses it by name, unless `resized` is given.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"gangline.PerRank({self.value!r})"


class GeneratorState(PerRank):
    """The state of a random number generator. Another number of ranks gets new states that are derived
    from it."""

    def __init__(self, value, generator):
        super().__init__(value)
        self.generator = generator


def units(tree):
    """Splits a tree of values into parts that ranks compare: [(name, text)]."""
    done, left = [], deque([((), tree)])
    while left:
        path, node = left.popleft()
        children = _children(node)
        if children is None or len(done) + len(left) + len(children) > UNITS_MAX:
            done.append((path_text(path), json.dumps(node, sort_keys=True)))
        else:
            done.append((path_text(path), node.get(TAG, "dict") if isinstance(node, dict) else "list"))
            left.extend(((*path, key), child) for key, child in children)
    return done


def _children(node):
    """Returns [(key, child)] of a container that holds others, else None."""
    if isinstance(node, dict) and TAG not in node:
        return list(node.items()) or None
    if isinstance(node, dict) and node[TAG] in ("dict", "ordered"):
        return [(key if isinstance(key, (str, int)) else json.dumps(key), child) for key, child in node["pairs"]] or None
    items = node["items"] if isinstance(node, dict) and node[TAG] == "tuple" else node
    if isinstance(items, list) and any(isinstance(item, (dict, list)) for item in items):
        return list(enumerate(items))
    return None
