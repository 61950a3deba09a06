"""Values of which each rank has its own, and how they are kept: rank r's values are one tree of bytes under a reserved name, by where
they lie in the state dict, and their tensors are by themselves. The tree that all ranks hold alike only says that there are some.
"""

import json
from collections import deque
from typing import Any

from ._values import TAG, path_text

RANKS_MAX = 65_536
# The most values that ranks compare one by one; of more, several count as one.
UNITS_MAX = 2_048


class PerRank:
    """A value of which each rank has its own, in a state dict that is saved: a data loader's position, say.

        store.save(step, {"model": model.state_dict(), "loader": gangline.PerRank(loader.state_dict())})

    It is loaded without this around it: each rank gets what the same rank had saved. If another number of ranks loads it, nobody
    can know what is to become of it: `load` refuses it by name, unless it is told by `resized`.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"gangline.PerRank({self.value!r})"


class GeneratorState(PerRank):
    """A state of a generator of random numbers. Other numbers of ranks get new ones that are made of it."""

    def __init__(self, value, generator):
        super().__init__(value)
        self.generator = generator


def units(tree):
    """A tree of values in parts that ranks compare: [(what it is called, text)]."""
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
    """[(key, child)] of a container that holds others, else None."""
    if isinstance(node, dict) and TAG not in node:
        return list(node.items()) or None
    if isinstance(node, dict) and node[TAG] in ("dict", "ordered"):
        return [(key if isinstance(key, (str, int)) else json.dumps(key), child) for key, child in node["pairs"]] or None
    items = node["items"] if isinstance(node, dict) and node[TAG] == "tuple" else node
    if isinstance(items, list) and any(isinstance(item, (dict, list)) for item in items):
        return list(enumerate(items))
    return None
