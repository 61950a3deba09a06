"""`bench tensors` runs it: a state dict of that many numpy arrays, saved and loaded through the Python package."""

import resource
import sys
import time

import gangline
import numpy

count, folder = int(sys.argv[1]), sys.argv[2]
array = numpy.arange(64, dtype=numpy.float32)
state = {f"layers.{number // 384}": {} for number in range(0, count, 384)}
for number in range(count):
    state[f"layers.{number // 384}"][f"mlp.experts.{number % 384}.down_proj.weight"] = array + number


def told(what, began):
    print(f"{time.monotonic() - began:9.2f} s   python: {what}", flush=True)


with gangline.Store(folder) as store:
    began = time.monotonic()
    save = store.save(1, state)
    told("save blocks", began)
    save.durable()
    told("it is durable", began)
    began = time.monotonic()
    found = store.load(1)
    told("load into new arrays", began)
    assert sum(map(len, found.values())) == count
    began = time.monotonic()
    store.load(1, into=state)
    told("load into those that are there", began)
print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6:9.0f} MB  python: peak of memory")
