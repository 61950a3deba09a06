"""Rules for the checkpoints that retention keeps."""

import dataclasses
import json
import operator
from collections.abc import Mapping, Sequence

from .errors import Refused


@dataclasses.dataclass(frozen=True)
class Keep:
    """The checkpoints of the current branch that stay after each save: those that any of these rules selects.

        gangline.Store("checkpoints", keep=gangline.Keep(last=3, every_steps=1000, lowest={"loss": 2}))

    The newest checkpoint always stays, and so do checkpoints of other branches.
    """

    last: int = 2
    """This many of the newest good ones, at least one."""
    every_steps: int | None = None
    """The first in each interval of this many steps, counted from step 0."""
    every_hours: int | None = None
    """The first in each interval of this many hours, counted from 1970-01-01 00:00 UTC."""
    lowest: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Those with the lowest values of a number in their metadata; {"loss": 3} keeps three."""
    highest: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Those with the highest values of a number in their metadata."""
    steps: Sequence[int] = ()
    """These steps."""


def given(keep):
    """Converts `keep` (a number, None or a Keep) for the native store: the number of newest ones, and the
    rules as JSON."""
    if not isinstance(keep, Keep):
        return (None if keep is None else _count("keep", keep), "[]")
    rules = []
    for name in ("every_steps", "every_hours"):
        if getattr(keep, name) is not None:
            rules.append({name: _count(name, getattr(keep, name))})
    for name in ("lowest", "highest"):
        rules += [{name: (metric, _count(f"{name}[{metric!r}]", count))} for metric, count in getattr(keep, name).items()]
    if keep.steps:
        rules.append({"steps": [operator.index(step) for step in keep.steps]})
    return _count("last", keep.last), json.dumps(rules)


def _count(name, value):
    try:
        number = operator.index(value)
    except TypeError:
        raise Refused(f"keep checkpoints by {name}={value!r}: it is a {type(value).__qualname__}, not an integer") from None
    if not 1 <= number < 1 << 32:
        raise Refused(f"keep checkpoints by {name}={value!r}: it is from 1 to 2^32 - 1")
    return number
