"""Converts metadata to text by name, with the types of the values that aren't text, and back."""

import json

import numpy

from ._origin import PREFIX
from .errors import Refused

Note = str | int | float | bool

_OF_TYPE = {"integer": int, "float": float, "boolean": "true".__eq__}


def texts(metadata):
    """Returns (name to text, name to type as JSON) of a mapping of names to values."""
    named = {name: _text(name, value) for name, value in metadata.items()}
    types = {name: kind for name, (_, kind) in named.items() if kind is not None}
    return {name: text for name, (text, _) in named.items()}, json.dumps(types)


def values(named, types):
    """Inverts `texts`, and leaves out what says where the checkpoint came from."""
    own = {name: text for name, text in named.items() if not name.startswith(PREFIX)}
    return {name: _OF_TYPE[types[name]](text) if types.get(name) in _OF_TYPE else text for name, text in own.items()}


def _text(name, value):
    if not isinstance(name, str):
        raise Refused(f"save the metadata: its name {name!r} is a {type(name).__qualname__}, not text")
    if isinstance(value, (bool, numpy.bool_)):
        return ("true" if value else "false"), "boolean"
    if isinstance(value, (int, numpy.integer)):
        return str(int(value)), "integer"
    if isinstance(value, (float, numpy.floating)):
        return repr(float(value)), "float"
    if isinstance(value, str):
        return value, None
    raise Refused(f"save the metadata {name!r}: it is a {type(value).__qualname__}, not text, a number or a truth value")
