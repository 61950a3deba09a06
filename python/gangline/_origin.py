"""What a checkpoint says of where it came from: the data that was read, the software it ran on, and the loss that was last reported.

They are notes of its metadata, which `gangline models lineage` shows. Names beginning with `gangline.` are left out of what
`list` and `latest` return, and ranks needn't agree on them.
"""

import functools
import hashlib
import json
import platform
import sys
import weakref
from importlib import metadata

from ._report import last_loss

PREFIX = "gangline."
DATA = "gangline.data"
ENVIRONMENT = "gangline.environment"
LOSS = "gangline.loss"
# Packages whose versions are named; all others are in a digest.
NAMED = ("gangline", "torch", "numpy", "jax", "transformers", "lightning", "pytorch-lightning", "datasets", "tokenizers", "accelerate")
# Notes that are longer together than this are left out: metadata has 64 KiB.
BYTES_MAX = 16 << 10

# The orders of data that are open in this process.
_read = weakref.WeakSet()


def note_data(order):
    """Has the checkpoints of this process say that this data was read, until the order is gone."""
    _read.add(order)


def with_origin(given):
    """Returns the metadata that the caller gave, with the notes of where the checkpoint comes from."""
    notes = {ENVIRONMENT: _environment()}
    loss = last_loss()
    if loss is not None:
        # Retention doesn't count a checkpoint whose loss is NaN or infinite.
        notes[LOSS] = repr(loss)
    sources = [source for order in list(_read) for source in order.described()]
    if sources:
        notes[DATA] = json.dumps(sorted(sources, key=lambda source: (source["name"], source["source"], source["samples"])))
    if sum(map(len, notes.values())) > BYTES_MAX:
        notes.pop(DATA, None)
    return {**notes, **(given or {})}


@functools.cache
def _environment():
    """Returns the versions of what runs here, as JSON, with a digest of all installed packages: that of the sorted lines
    `name==version`."""
    found = {}
    for one in metadata.distributions():
        name = one.metadata["Name"]
        if name:
            found.setdefault(name.lower().replace("_", "-"), one.version)
    lines = "\n".join(f"{name}=={version}" for name, version in sorted(found.items()))
    versions = {"python": platform.python_version(), **{name: found[name] for name in NAMED if name in found}}
    torch = sys.modules.get("torch")
    if torch is not None:
        versions["torch"] = str(torch.__version__)
        versions |= {"cuda": torch.version.cuda} if torch.version.cuda else {}
    versions |= _driver()
    versions["packages"] = f"{len(found)}, sha256 {hashlib.sha256(lines.encode()).hexdigest()}"
    return json.dumps(versions)


def _driver():
    """Returns the version of NVIDIA's kernel module, if there is one."""
    try:
        with open("/sys/module/nvidia/version") as file:
            return {"nvidia_driver": file.read(64).strip()}
    except OSError:
        return {}
