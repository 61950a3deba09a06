"""Converts a state dict to named tensors and one tree of values, and back.

Tensors are named by their keys, joined by dots, as torch.distributed.checkpoint does: `model.0.weight`. The
tree, which holds all other values and the place of each tensor, is itself stored as a tensor of bytes under a
reserved name.
"""

import base64
import dataclasses
import itertools
import math

import numpy

from . import _values
from ._kinds import BY_NAME, NumpyKind, kind_of
from ._loading import ANYTHING, LEFT_OUT, How, Selection, has_gaps, without_gaps
from ._per_rank import RANKS_MAX, PerRank
from ._random import generator_of, state_of_rank
from ._tokens import Tokens
from ._types import RAW, STORED, numpy_type, original, stored, stored_box
from ._values import NOT_MINE, TAG, path_text
from .errors import Corrupt, Refused

RESERVED = "__gangline__."
VALUES = RESERVED + "values"
PER_RANK = "per rank"
ABSENT = object()
# The most bytes that are read before they are copied; a larger tensor is read alone.
_BATCH_BYTES_MAX = 256 << 20
# Element sizes by the last digits of the stored type's name; other types have one byte.
_ELEMENT_BYTES = {"64": 8, "32": 4, "16": 2}
_WHOLE = How()


class _Own:
    """First key of the path of a value that differs by rank, which has no place in `into`."""

    def __repr__(self):
        return "rank"


OWN = _Own()


@dataclasses.dataclass
class Piece:
    """The part of a tensor that this rank saves."""

    name: str
    type: str
    shape: tuple  # of these bytes
    data: numpy.ndarray  # flat uint8
    part_of: tuple | None = None  # (shape of the whole, offsets of these bytes in it); None: replicated
    source: object = None  # the tensor whose memory `data` may be; None: nobody else's


@dataclasses.dataclass
class Wanted:
    """A read request: a box of a tensor, into flat memory."""

    name: str
    offsets: tuple
    shape: tuple
    room: numpy.ndarray


@dataclasses.dataclass
class Local:
    """The part of a tensor that this rank holds."""

    tensor: object
    """The local elements; all of them, if it isn't sharded."""
    identity: object
    """An identity shared by tied tensors, or None. Ranks must find the same tensors tied."""
    part_of: tuple | None = None
    """(Shape of the whole, offsets of this part), if only this rank writes it; None if every rank holds
    the same tensor."""
    is_written: bool = True
    """Whether to pass it to the store; false if another rank writes it."""


class Gathering:
    """Splits a state dict into tensors and values. `local(path, kind, tensor)` returns the part of a tensor
    that this rank holds: a Local.

    place: (this rank, number of ranks). In a gang, generators' states are kept by rank automatically.
    """

    def __init__(self, local, place=(0, 1), is_gang=False):
        self.local, self.place, self.is_gang = local, place, is_gang
        self.values = None  # the tree, which all ranks hold alike
        self.own = {}  # where a value lies that each rank has its own of -> this rank's tree
        self.own_gathering = None
        self.pieces = []
        self.names = {VALUES}
        self.places = {}  # memory -> name, for tied tensors
        self.kept = []  # what must stay alive, so that no memory is mistaken for another's

    def tree(self, state_dict):
        """Returns the encoded tree, and fills `pieces` with the tensors."""
        if not isinstance(state_dict, dict):
            raise Refused(f"save a dict, not a {type(state_dict).__qualname__}")
        self.values = _values.tree_of(state_dict, self.leaf)
        return _values.text_of(self.values, _values.VERSION_PER_RANK if self.own else _values.VERSION)

    def own_values(self):
        """Returns the encoded tree of this rank's own values, or None if there are none."""
        return _values.text_of(self.own) if self.own else None

    def leaf(self, path, value):
        if isinstance(value, PerRank):
            return self.per_rank(path, value.value, getattr(value, "generator", None))
        if self.is_gang and path and (generator := generator_of(value)):
            return self.per_rank(path, value, generator)
        if isinstance(value, numpy.generic):
            return _scalar(path, value)
        if isinstance(value, Tokens):
            return _values.tree_of(value.state_dict(), self.leaf, path)
        kind = kind_of(value)
        if kind is None:
            return NOT_MINE
        if not hasattr(value, "to_local"):
            _check(path, kind, value)
        local = self.local(path, kind, value)
        if local.tensor is not value:
            _check(path, kind, local.tensor)
        type_name = kind.type_of(local.tensor)
        payload = {TAG: "tensor", "as": kind.name}
        if type_name in RAW:
            payload["raw"] = type_name
        if local.identity in self.places:
            return {**payload, "at": self.places[local.identity]}
        name = self.name(path)
        if local.identity is not None:
            self.places[local.identity] = name
            self.kept.append(value)
        if local.is_written:
            self.pieces.append(_piece(name, kind, local.tensor, local.part_of))
        return {**payload, "at": name}

    def per_rank(self, path, value, generator):
        """Keeps a value as this rank's own."""
        if self.own_gathering is None:
            self.own_gathering = _OwnGathering(self)
        key = path_text(path)
        self.own[key] = _values.tree_of(value, self.own_gathering.leaf, path)
        payload = {TAG: PER_RANK, "key": key, "ranks": self.place[1]}
        return payload if generator is None else {**payload, "generator": generator}

    def name(self, path):
        name = plain = ".".join(map(str, path))
        if name.startswith(RESERVED):
            raise Refused(f"save {path_text(path)}: names that begin with {RESERVED!r} are reserved")
        again = 1
        while name in self.names:
            again += 1
            name = f"{plain}#{again}"
        self.names.add(name)
        return name


class _OwnGathering(Gathering):
    """Splits a rank's own values."""

    def __init__(self, outer):
        super().__init__(self.whole, outer.place)
        self.pieces, self.names = outer.pieces, outer.names

    @staticmethod
    def whole(path, kind, tensor):
        if hasattr(tensor, "to_local"):
            raise Refused(f"save {path_text(path)}: it is a DTensor in a gangline.PerRank: save its to_local()")
        shape = list(kind.shape_of(tensor))
        return Local(tensor, kind.identity(tensor), (shape, [0] * len(shape)))

    def per_rank(self, path, value, generator):
        raise Refused(f"save {path_text(path)}: it is a gangline.PerRank in another")

    def name(self, path):
        name = f"{own_name(self.place[0])}.{'.'.join(map(str, path))}"
        again = next(number for number in itertools.count(1) if (name if number == 1 else f"{name}#{number}") not in self.names)
        name = name if again == 1 else f"{name}#{again}"
        self.names.add(name)
        return name


def own_name(rank):
    """Returns the name of a rank's own tree of values; the names of its own tensors begin with it and a
    dot."""
    return f"{RESERVED}rank.{rank}"


def _check(path, kind, tensor):
    refusal = kind.refusal(tensor)
    if refusal is None and kind.type_of(tensor) not in STORED and kind.type_of(tensor) not in RAW:
        refusal = f"its elements are of type {kind.type_of(tensor)}"
    if refusal:
        raise Refused(f"save {path_text(path)}: {refusal}")


def _piece(name, kind, tensor, part_of):
    type_name, shape = stored(kind.type_of(tensor), kind.shape_of(tensor))
    if part_of is not None:
        whole, offsets = part_of
        extra = shape[len(whole) :]  # the bytes of an element that is kept raw
        if extra:
            part_of = ([*whole, *extra], [*offsets, *(0 for _ in extra)])
        else:
            part_of = tuple(list(numbers) for numbers in stored_box(type_name, None, whole, offsets))
    view = kind.view_of(tensor)
    if view is None:
        return Piece(name, type_name, shape, kind.bytes_of(tensor), part_of)
    return Piece(name, type_name, shape, view, part_of, tensor)


def _scalar(path, value):
    if value.dtype.hasobject or value.dtype.kind not in "biufcV":
        raise Refused(f"save {path_text(path)}: a numpy scalar of type {value.dtype.name} has no safe encoding")
    return {TAG: "numpy", "type": value.dtype.name, "base64": base64.b64encode(value.tobytes()).decode()}


def scalar_of(payload):
    """Returns the numpy scalar that `_scalar` wrote."""
    if payload[TAG] != "numpy":
        raise ValueError("no such kind of value is known")
    return numpy.frombuffer(base64.b64decode(payload["base64"], validate=True), numpy_type(payload["type"]))[0]


def array_payload(value):
    """Encodes a numpy array as a value, for torch's planners, which don't treat it as a tensor."""
    return {
        TAG: "array",
        "type": value.dtype.name,
        "shape": list(value.shape),
        "base64": base64.b64encode(NumpyKind.bytes_of(value)).decode(),
    }


def array_of(payload):
    """Inverts `array_payload`."""
    data = base64.b64decode(payload["base64"], validate=True)
    return numpy.frombuffer(data, numpy_type(payload["type"])).reshape(payload["shape"]).copy()


class Scattering:
    """Rebuilds a state dict: `plan` decides what to read, `fill` reads it, `finish` returns the result.

    `sharded(path, tensor)` returns this rank's part of a sharded tensor in `into`: (local tensor, its offsets
    in the whole). place: (this rank, number of ranks). `resized(key, values)` makes this rank's value from
    those of another number of ranks.
    """

    def __init__(self, snapshot, into, sharded, how=_WHOLE, place=(0, 1), resized=None):
        self.snapshot, self.place, self.resized = snapshot, place, resized
        self.own_trees = {}  # rank -> what it had its own of
        self.text, self.tensors, self.where = snapshot.values(into), snapshot.tensors, snapshot.where
        self.into, self.sharded, self.how = into, sharded, how
        self.selection = Selection(how, into)
        self.wanted = []
        self.aside = []  # what has to be copied, or converted, into where it belongs: (_Aside, ...)
        self.finals = {}  # path -> what makes the value, after reading
        self.read = {}  # (kind, name) -> the new value that will hold the whole tensor
        self.filled = set()  # (name, identity) of the memory of `into` that will hold it
        self.kept = {}  # path -> what is kept of a copied tensor

    def plan(self):
        """Plans what to read in place. Everything that can be refused is refused here, before anything is
        written."""
        tree = self.selection.chosen((), _values.decode(self.text, self.leaf, self.where))
        self.selection.check_names(tree)
        if self.into is None:
            without_gaps((), tree)
        else:
            self.selection.check_fits((), self.into, tree)
        return self.wanted

    def fill(self, read):
        """Calls `read(wanted, verify)` for what `plan` returned, and then for the tensors that must be
        copied, several at a time. Returns the result of the first call: a check in progress, or None."""
        verification = read(self.wanted, self.how.verify)
        # Tensors that are copied are checked before, so that there is only one check to wait for.
        verify = "all" if self.how.verify == "background" else self.how.verify
        for batch in _batches(self.aside):
            rooms = [one.kind.new(one.type, one.kind.shape_of(one.local)) for one in batch]
            wanted = [one.wanted(one.kind.room_in(room)) for one, room in zip(batch, rooms, strict=True)]
            read([one for one in wanted if one.room.size], verify)
            for one, room in zip(batch, rooms, strict=True):
                self.kept[one.path] = one.kind.copy_into(one.local, room)
        return verification

    def finish(self):
        """Returns the state dict, after `fill`; `into` itself if there is one."""
        tree = _values.decode(self.text, lambda path, payload: self.finals[path](), self.where)
        tree = self.selection.chosen((), tree)
        if self.into is not None:
            return self.selection.merge((), self.into, tree)
        whole = without_gaps((), tree)
        return {} if whole is LEFT_OUT else whole

    def leaf(self, path, payload):
        if payload[TAG] == "numpy":
            scalar = scalar_of(payload)
            self.finals[path] = lambda: scalar
            return scalar
        if payload[TAG] == "array":
            array = array_of(payload)
            self.finals[path] = lambda: array
            return array
        if payload[TAG] == PER_RANK and path[:1] != (OWN,):
            return self.per_rank(path, payload)
        if payload[TAG] != "tensor":
            raise ValueError("no such kind of value is known")
        kind, name = BY_NAME[payload["as"]], payload["at"]
        if name not in self.tensors:
            raise Corrupt(f"read {path_text(path)} of {self.where}: there is no tensor {name!r}")
        is_taken = path[2] or self.selection.takes(path[3:]) if path[:1] == (OWN,) else self.selection.takes(path)
        if not is_taken:
            return self.left_out(path)
        type_name, shape = original(*self.tensors[name], payload.get("raw"))
        target = ABSENT if self.into is None else find(self.into, path)
        if kind_of(target) is not None:
            return self.into_tensor(path, name, target, (type_name, shape))
        return self.new_tensor(path, name, kind, (type_name, shape))

    def per_rank(self, path, payload):
        """Returns a value that was saved by rank."""
        (rank, ranks), saved, generator = self.place, payload["ranks"], payload.get("generator")
        if type(saved) is not int or not 0 < saved <= RANKS_MAX:
            raise ValueError("its number of ranks makes no sense")
        if saved != ranks and generator is None and self.resized is None:
            if not self.selection.takes(path):
                return self.left_out(path)
            raise Refused(
                f"load {path_text(path)}: each of {saved} ranks saved its own, and {ranks} load: say by "
                "load(..., resized=function) what is to become of them"
            )
        trees = {one: self.own_tree(one, payload["key"]) for one in ([rank] if saved == ranks else range(saved))}
        # States of generators are small: they are loaded like plain values.
        is_taken = generator is not None and self.how.only is None
        decoded = lambda one, leaf: _values.decode_tree(trees[one], leaf, self.where, (OWN, one, is_taken, *path))  # noqa: E731
        planned = [decoded(one, self.leaf) for one in trees]
        if any(map(has_gaps, planned)):
            return self.left_out(path)

        def final():
            found = [decoded(one, lambda path, payload: self.finals[path]()) for one in trees]
            if saved == ranks:
                return found[0]
            if generator is not None:
                return state_of_rank(generator, found, rank, ranks)
            try:
                return self.resized(path, found)
            except Exception as error:
                raise Refused(f"load {path_text(path)}: what is to be made of {saved} ranks' values can't be: {error!r}") from error

        self.finals[path] = final
        return planned[0] if saved == ranks else ANYTHING

    def left_out(self, path):
        self.finals[path] = lambda: LEFT_OUT
        return LEFT_OUT

    def own_tree(self, rank, key):
        if rank not in self.own_trees:
            name = own_name(rank)
            if name not in self.tensors:
                raise Corrupt(f"read values of {self.where}: there is no tensor {name!r}")
            self.own_trees[rank] = _values.parse(self.snapshot.bytes(name), self.where)
        return self.own_trees[rank][key]

    def new_tensor(self, path, name, kind, declared):
        if (kind, name) not in self.read:
            value = self.read[kind, name] = kind.new(*declared)
            self.want(name, None, kind.room_in(value), ())
        value = self.read[kind, name]
        self.finals[path] = lambda: kind.finish(value)
        return value

    def into_tensor(self, path, name, target, declared):
        kind = kind_of(target)
        local, shape, offsets = target, kind.shape_of(target), None
        if hasattr(target, "to_local"):
            local, offsets = self.sharded(path, target)
        found = kind.type_of(local), tuple(shape)
        if found != declared:
            self.check_cast(path, found, declared)
        self.finals[path] = lambda: target
        memory = name, kind.identity(local)
        if memory[1] is not None and memory in self.filled:
            return target  # tied there too
        self.filled.add(memory)
        room = kind.room_in(local) if found == declared else None
        if room is not None:
            self.want(name, offsets, room, kind.shape_of(local))
            return target
        self.aside.append(_Aside(path, name, kind, local, declared[0], offsets, self.tensors[name]))

        def copied():
            return target if self.kept[path] is local else self.kept[path]

        self.finals[path] = copied
        return target

    def check_cast(self, path, found, declared):
        """Refuses a tensor whose shape or type differs from the saved one, unless only the floating-point
        type differs and casting is enabled."""
        are_floats = all(name.startswith(("float", "bfloat")) for name in (found[0], declared[0]))
        may_cast = are_floats and found[1] == declared[1]
        if self.how.cast and may_cast:
            return
        hint = "; cast=True converts it" if may_cast else ""
        saved, has = _described(*declared), _described(*found)
        raise Refused(f"load {path_text(path)}: it was saved as {saved}, and into has {has}{hint}")

    def want(self, name, offsets, room, shape):
        if room.size:
            self.wanted.append(_wanted(name, self.tensors[name], offsets, room, shape))


@dataclasses.dataclass
class _Aside:
    """A tensor that is first read into separate memory: it is on a device, not contiguous, or of another
    type."""

    path: tuple
    name: str
    kind: object
    local: object
    type: str
    offsets: tuple | None
    stored: tuple  # (type, shape) of the whole

    def wanted(self, room):
        return _wanted(self.name, self.stored, self.offsets, room, self.kind.shape_of(self.local))

    def bytes(self):
        return math.prod(self.wanted(None).shape) * _ELEMENT_BYTES.get(self.stored[0][-2:], 1)


def _wanted(name, stored_whole, offsets, room, shape):
    """Returns a box of a tensor, given by shape and offsets in the framework's elements; all of it without
    offsets."""
    stored_type, whole = stored_whole
    if offsets is None:
        return Wanted(name, (0,) * len(whole), tuple(whole), room)
    extra = whole[len(shape) :]  # the bytes of an element that is kept raw
    offsets, shape = stored_box(stored_type, None, offsets, shape)
    return Wanted(name, (*offsets, *(0,) * len(extra)), (*shape, *extra), room)


def _batches(asides):
    """Groups tensors into batches of little memory; a larger tensor is alone."""
    batch, size = [], 0
    for aside in asides:
        own = aside.bytes()
        if batch and size + own > _BATCH_BYTES_MAX:
            yield batch
            batch, size = [], 0
        batch.append(aside)
        size += own
    if batch:
        yield batch


def _described(type_name, shape):
    return f"{type_name} of shape {list(shape)}"


def find(tree, path):
    """Returns the value at `path` in nested containers, or ABSENT."""
    for key in path:
        if isinstance(tree, dict) and key in tree:
            tree = tree[key]
        elif isinstance(tree, (list, tuple)) and isinstance(key, int) and key < len(tree):
            tree = tree[key]
        else:
            return ABSENT
    return tree
