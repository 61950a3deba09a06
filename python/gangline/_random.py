"""The generators of random numbers that a training loop draws from: Python's, numpy's, torch's, and each CUDA device's."""

import random

import numpy
import torch


def states():
    """The states of all, in tensors and plain values: what torch.load reads without running a pickle as well."""
    name, keys, *rest = numpy.random.get_state()
    found = {"python": random.getstate(), "numpy": (name, keys.tolist(), *rest), "cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        found["cuda"] = torch.cuda.get_rng_state_all()
    return found


def restore(found):
    """Puts them back; those of CUDA devices only where there are as many."""
    random.setstate(found["python"])
    numpy.random.set_state(found["numpy"])
    torch.set_rng_state(found["cpu"])
    if torch.cuda.is_available() and len(found.get("cuda", ())) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(found["cuda"])
