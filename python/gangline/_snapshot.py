"""A checkpoint opened for reading."""

import json
import operator

import numpy

from . import _plan
from ._remote import cache_folder
from ._state import VALUES, Wanted
from ._values import BYTES_MAX
from .errors import Corrupt, Refused


def check_step(step):
    """Returns a step as the store counts it, or refuses it."""
    try:
        number = operator.index(step)
    except TypeError:
        raise Refused(f"take {step!r} as a step: it is a {type(step).__qualname__}, not an integer") from None
    if not 0 <= number < 1 << 64:
        raise Refused(f"take {step!r} as a step: steps are from 0 to 2^64 - 1")
    return number


class Snapshot:
    """A checkpoint opened for reading."""

    def __init__(self, native, step):
        self.step = step
        self.where = f"the checkpoint of step {step}"
        self._native = native.open_step(check_step(step))
        told = json.loads(self._native.info())
        self.tensors = {tensor["name"]: (tensor["data_type"], tuple(tensor["shape"])) for tensor in told["tensors"]}

    def values(self, into=None):
        """Returns the text of the tree of values. If none was saved, it is made from the tensors' names,
        and their places in `into`."""
        return self.bytes(VALUES) if VALUES in self.tensors else _plan.tree(self, into)

    def bytes(self, name):
        """Returns all bytes of a tensor."""
        kind, shape = self.tensors[name]
        if kind != "U8" or len(shape) != 1 or shape[0] > BYTES_MAX:
            raise Corrupt(f"read {self.where}: {name!r} is not a string of at most {BYTES_MAX} bytes")
        room = numpy.empty(shape, numpy.uint8)
        self.read([Wanted(name, (0,), shape, room)])
        return room.tobytes()

    def read(self, wanted, verify="all"):
        """Reads boxes of tensors, several at once; returns the background check if there is one, else
        None."""
        asked = [(one.name, self.tensors[one.name][0], list(one.offsets), list(one.shape), one.room) for one in wanted]
        marks = str(cache_folder("verified")) if verify == "first" else None
        return self._native.read_into(asked, verify, marks)
