"""Converts nested Python values to JSON and back. Unlike pickle, loading never runs code.

Plain JSON stands for itself: None, bool, str, int, finite floats, lists, and dicts with str keys. Any other
value is an object with a key "$" that gives its kind, and its payload. A dict that itself has a key "$" is
written as pairs, so no user's value is ever taken for a tag.

Limits: values nest at most DEPTH_MAX deep and their JSON has at most BYTES_MAX bytes.
"""

import base64
import binascii
import collections
import json
import math
import sys

from .errors import Corrupt, Refused

VERSION = 1
# The version of trees with values that are stored by rank.
VERSION_PER_RANK = 2
DEPTH_MAX = 100
BYTES_MAX = 1 << 30
# Limits parsing, which takes quadratic time; CPython itself refuses longer decimal integers.
INTEGER_DIGITS_MAX = 4000

TAG = "$"
# What hands a value that isn't a Python value (a tensor) to the caller gets this back from it: it has no tensor for it.
NOT_MINE = object()


def path_text(path):
    """Formats a key's path for messages: `['model'][0]`."""
    return "".join(f"[{key!r}]" for key in path) or "the state dict itself"


def encode(value, leaf):
    """Encodes `value` as JSON text in UTF-8.

    `leaf(path, value)` is called first for each dict, tuple and value that isn't a container: it returns a
    dict to write instead (the tags "tensor" and "per rank" are its own), or NOT_MINE.

    Raises Refused, with the key's path, for a value without a safe encoding.
    """
    return text_of(tree_of(value, leaf))


def tree_of(value, leaf, path=()):
    """Converts `value`, which is at `path`, to a tree that JSON can hold."""
    return _Encoder(leaf).value(path, value)


def text_of(tree, version=VERSION):
    """Returns the tree as JSON text in UTF-8."""
    tree = {"version": version, "value": tree}
    text = json.dumps(tree, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > BYTES_MAX:
        raise Refused(f"save values: their encoding has {len(text)} bytes, more than {BYTES_MAX}; make large ones tensors")
    return text


def decode(text, leaf, where):
    """Decodes what `encode` wrote. `leaf(path, payload)` makes a value from the dict that encode's `leaf`
    returned.

    Raises Corrupt, naming `where`, for anything that `encode` doesn't write.
    """
    return decode_tree(parse(text, where), leaf, where)


def decode_tree(tree, leaf, where, path=()):
    """Decodes a parsed tree; the value is at `path`."""
    return _Decoder(leaf, where).value(path, tree)


def parse(text, where):
    """Parses `encode`'s text into a tree, without decoding it. Raises Corrupt, naming `where`."""
    if len(text) > BYTES_MAX:
        raise Corrupt(f"read values of {where}: {len(text)} bytes are more than {BYTES_MAX}")
    try:
        tree = json.loads(bytes(text).decode())
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"read values of {where}: not JSON: {error}") from None
    if not isinstance(tree, dict) or "value" not in tree:
        raise Corrupt(f"read values of {where}: not a tree of values")
    if tree.get("version") not in (VERSION, VERSION_PER_RANK):
        raise Corrupt(f"read values of {where}: version {tree.get('version')!r} is not known here, only {VERSION_PER_RANK} and before")
    return tree["value"]


class _Encoder:
    def __init__(self, leaf):
        self.leaf = leaf

    def value(self, path, value):
        if len(path) > DEPTH_MAX:
            raise Refused(f"save {path_text(path[:3])}...: it nests more than {DEPTH_MAX} deep")
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return _text(path, value)
        if kind is int:
            return value if abs(value) < 2**53 else {TAG: "int", "text": _digits(path, value)}
        if kind is float:
            return value if math.isfinite(value) else {TAG: "float", "text": repr(value)}
        if kind is list:
            return self.items(path, value)
        if kind is dict or kind is tuple:
            encoded = self.leaf(path, value)
            if encoded is not NOT_MINE:
                return encoded
            return self.dict(path, value) if kind is dict else {TAG: "tuple", "items": self.items(path, value)}
        return self.other(path, value)

    def other(self, path, value):
        kind = type(value)
        if kind is bytes:
            return {TAG: "bytes", "base64": base64.b64encode(value).decode()}
        if kind is complex:
            return {TAG: "complex", "parts": [repr(value.real), repr(value.imag)]}
        if kind is collections.OrderedDict:
            return {TAG: "ordered", "pairs": self.pairs(path, value)}
        if kind in (set, frozenset):
            items = self.items(path, list(value))
            return {TAG: kind.__name__, "items": sorted(items, key=json.dumps)}
        torch = sys.modules.get("torch")
        if torch is not None and kind is torch.Size:
            return {TAG: "torch.Size", "items": [int(size) for size in value]}
        if torch is not None and kind is torch.dtype:
            return {TAG: "torch.dtype", "name": str(value).removeprefix("torch.")}
        encoded = self.leaf(path, value)
        if encoded is NOT_MINE:
            raise Refused(
                f"save {path_text(path)}: {kind.__module__}.{kind.__qualname__} has no safe encoding; "
                "save tensors and plain values (numbers, text, bytes, lists, tuples, dicts) instead"
            )
        return encoded

    def items(self, path, values):
        return [self.value((*path, index), value) for index, value in enumerate(values)]

    def dict(self, path, value):
        if TAG not in value and all(type(key) is str for key in value):
            return {_text(path, key): self.value((*path, key), item) for key, item in value.items()}
        return {TAG: "dict", "pairs": self.pairs(path, value)}

    def pairs(self, path, value):
        return [[self.key(path, key), self.value((*path, key), item)] for key, item in value.items()]

    def key(self, path, key):
        if isinstance(key, (str, int, float, bool, tuple, bytes, type(None))):
            return self.value(path, key)
        raise Refused(f"save {path_text(path)}: a key of type {type(key).__qualname__} has no safe encoding")


def _text(path, value):
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise Refused(f"save {path_text(path)}: its text has a lone surrogate, which no file can hold") from None
    return value


def _digits(path, value):
    # 10 digits take 33.2 bits: avoids computing a huge power only to find that a number is too long.
    if value.bit_length() > INTEGER_DIGITS_MAX * 3:
        raise Refused(f"save {path_text(path)}: an integer of {value.bit_length()} bits is too long; save it as bytes")
    return str(value)


class _Decoder:
    def __init__(self, leaf, where):
        self.leaf, self.where = leaf, where

    def value(self, path, tree):
        if len(path) > DEPTH_MAX:
            raise Corrupt(f"read values of {self.where}: they nest more than {DEPTH_MAX} deep")
        if isinstance(tree, list):
            return self.items(path, tree)
        if not isinstance(tree, dict):
            return tree
        if TAG not in tree:
            return {key: self.value((*path, key), item) for key, item in tree.items()}
        try:
            return self.tagged(path, tree)
        except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as error:
            if isinstance(error, Refused):
                raise
            raise Corrupt(f"read {path_text(path)} of {self.where}: malformed {tree[TAG]!r}: {error}") from None

    def tagged(self, path, tree):
        tag = tree[TAG]
        if tag == "tuple":
            return tuple(self.items(path, tree["items"]))
        if tag == "dict":
            return dict(self.pairs(path, tree))
        if tag == "ordered":
            return collections.OrderedDict(self.pairs(path, tree))
        if tag in ("set", "frozenset"):
            return (set if tag == "set" else frozenset)(self.items(path, tree["items"]))
        if tag == "bytes":
            return base64.b64decode(tree["base64"], validate=True)
        if tag == "float":
            return {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}[tree["text"]]
        if tag == "int":
            return int(tree["text"])
        if tag == "complex":
            real, imaginary = tree["parts"]
            return complex(float(real), float(imaginary))
        if tag in ("torch.Size", "torch.dtype"):
            return self.torch(tree)
        return self.leaf(path, tree)

    def torch(self, tree):
        import torch

        if tree[TAG] == "torch.Size":
            return torch.Size(tree["items"])
        dtype = getattr(torch, tree["name"])
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"torch.{tree['name']} is no type of elements")
        return dtype

    def items(self, path, trees):
        return [self.value((*path, index), tree) for index, tree in enumerate(trees)]

    def pairs(self, path, tree):
        pairs = [(self.value(path, key), item) for key, item in tree["pairs"]]
        return [(key, self.value((*path, key), item)) for key, item in pairs]
