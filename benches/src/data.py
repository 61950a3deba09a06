"""One round of the peers of `bench data`: samples/s of int64 batches from a file of uint16 tokens, as JSON."""

import json
import sys
import time

import numpy

BATCH, LENGTH = 32, 2048


def rate(fill, seconds=1.0):
    """Samples a second."""
    fill()
    began, batches = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        fill()
        batches += 1
    return batches * BATCH / (time.perf_counter() - began)


path, found = sys.argv[1], {}
tokens = numpy.memmap(path, dtype=numpy.uint16, mode="r")
samples = (len(tokens) - 1) // LENGTH
order = numpy.random.default_rng(1).permutation(samples)
at = 0


def take():
    """numpy's own fastest way: a gather of whole rows, widened."""
    global at
    rows = order[at : at + BATCH]
    at = (at + BATCH) % (samples - BATCH)
    return tokens[: samples * LENGTH].reshape(samples, LENGTH)[rows].astype(numpy.int64)


def each():
    """A loop over samples, as nanoGPT has it: inputs and labels."""
    global at
    rows = order[at : at + BATCH] * LENGTH
    at = (at + BATCH) % (samples - BATCH)
    inputs = numpy.stack([tokens[row : row + LENGTH].astype(numpy.int64) for row in rows])
    return inputs, numpy.stack([tokens[row + 1 : row + 1 + LENGTH].astype(numpy.int64) for row in rows])


found["numpy memmap, gather of rows, inputs only"] = rate(take)
found["numpy memmap, a loop over samples, inputs and labels"] = rate(each)
try:
    import gangline
except ModuleNotFoundError:
    gangline = None
if hasattr(gangline, "Tokens"):
    options = {"sequence_length": LENGTH, "global_batch": BATCH, "seed": 1, "epochs": None, "source_dtype": "uint16", "kind": "numpy"}
    for name, labels in (("inputs only", None), ("inputs and labels", "shifted")):
        made = gangline.Tokens(path, shuffle="global", labels=labels, **options)
        found[f"gangline.Tokens from Python, {name}"] = rate(made.next_batch)
print(json.dumps(found))
