"""The random number generators that a training loop uses: Python's, numpy's, torch's, and each CUDA
device's."""

import hashlib
import random
import sys
from typing import Any

import numpy

from ._per_rank import GeneratorState, PerRank

# numpy's bit generators, whose states are dicts that name them.
BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
CUDA_STATE_BYTES = 16


def rng_state() -> dict[str, Any]:
    """Returns the states of all random number generators that a training loop uses, of this rank:
    Python's, numpy's, torch's on the CPU and on each CUDA device. Save the result as it is, and pass it to
    `set_rng_state` after loading."""
    found = states()
    kinds = {"python": "python", "numpy": "numpy", "cpu": "torch"}
    kept = {name: GeneratorState(state, kinds[name]) for name, state in found.items() if name in kinds}
    if "cuda" in found:
        kept["cuda"] = [GeneratorState(state, "cuda") for state in found["cuda"]]
    return kept


def set_rng_state(state: dict[str, Any]) -> None:
    """Restores the result of `rng_state`, saved and loaded or not. CUDA states are restored only if the
    number of devices is the same."""
    bare = lambda value: value.value if isinstance(value, PerRank) else value  # noqa: E731
    restore({name: list(map(bare, one)) if name == "cuda" else bare(one) for name, one in state.items()})


def states():
    """Returns the states of all, in tensors and plain values, which torch.load can read without running a
    pickle."""
    name, keys, *rest = numpy.random.get_state()
    found = {"python": random.getstate(), "numpy": (name, keys.tolist(), *rest)}
    torch = sys.modules.get("torch")
    if torch is not None:
        found["cpu"] = torch.get_rng_state()
        if torch.cuda.is_available():
            found["cuda"] = torch.cuda.get_rng_state_all()
    return found


def restore(found):
    """Restores the states; those of CUDA devices only if the number of devices is the same."""
    random.setstate(found["python"])
    numpy.random.set_state(found["numpy"])
    torch = sys.modules.get("torch")
    if torch is not None and "cpu" in found:
        torch.set_rng_state(found["cpu"])
        if torch.cuda.is_available() and len(found.get("cuda", ())) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(found["cuda"])


def generator_of(value):
    """Returns the kind of generator whose state `value` certainly is, or None."""
    if isinstance(value, tuple):
        if len(value) == 3 and isinstance(value[1], tuple) and len(value[1]) == 625:
            is_plain = all(type(word) is int for word in value[1]) and (value[2] is None or type(value[2]) is float)
            return "python" if is_plain and _takes(random.Random().setstate, value) else None
        return "numpy" if len(value) == 5 and _takes(numpy.random.RandomState().set_state, value) else None
    if isinstance(value, dict):
        return "numpy" if _is_bit_generators(value) else None
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor) or value.dtype != torch.uint8 or value.dim() != 1:
        return None
    if value.numel() == CUDA_STATE_BYTES and torch.cuda.is_available() and torch.cuda.is_initialized():
        # Only a device that is in this very state distinguishes it from other 16 bytes.
        return "cuda" if any(torch.equal(value.cpu(), state.cpu()) for state in torch.cuda.get_rng_state_all()) else None
    generator = torch.Generator()
    is_long_enough = value.numel() == generator.get_state().numel()
    return "torch" if is_long_enough and _takes(generator.set_state, value.cpu().clone()) else None


def _takes(function, state):
    try:
        function(state)
    except (RuntimeError, LookupError, TypeError, ValueError):
        return False
    return True


def _is_bit_generators(value):
    name = value.get("bit_generator")
    if name not in BIT_GENERATORS or not isinstance(value.get("state"), dict):
        return False
    generator = getattr(numpy.random, name)()
    return _takes(lambda state: setattr(generator, "state", state), value)


def state_of_rank(generator, saved, rank, ranks):
    """Returns the state of one of `ranks` ranks, from the states that another number of ranks saved: their
    common state if all were equal; otherwise a new one for each rank, derived from theirs. So no two ranks
    draw the same numbers, and the same resize always gives the same numbers."""
    if all(_text(state) == _text(saved[0]) for state in saved):
        return saved[0]
    digest = hashlib.blake2b(f"{rank} of {ranks} after {_text(saved[0])}".encode(), digest_size=8).digest()
    seed = int.from_bytes(digest, "little")
    if generator == "python":
        return random.Random(seed).getstate()
    if generator == "numpy":
        if isinstance(saved[0], dict):
            return getattr(numpy.random, _bit_generator(saved[0]))(seed).state
        name, keys, *rest = numpy.random.RandomState(numpy.random.MT19937(seed)).get_state()
        return (name, keys.tolist() if isinstance(saved[0][1], list) else keys, *rest)
    import torch

    if generator == "torch":
        return torch.Generator().manual_seed(seed).get_state()
    if generator == "cuda":  # its seed and its offset
        return torch.frombuffer(bytearray(digest + bytes(CUDA_STATE_BYTES - len(digest))), dtype=torch.uint8)
    raise ValueError(f"no generator {generator!r} is known")


def states_of_rank(found, rank, ranks):
    """Returns the states of one resuming rank, from those that `states` returned in one process."""
    kinds = {"python": "python", "numpy": "numpy", "cpu": "torch"}
    made = {name: state_of_rank(kinds[name], [state, None], rank, ranks) for name, state in found.items() if name in kinds}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        made["cuda"] = [state_of_rank("cuda", [made["cpu"], None], rank, ranks)] * torch.cuda.device_count()
    return made


def _bit_generator(state):
    name = state.get("bit_generator")
    if name not in BIT_GENERATORS:
        raise ValueError(f"no generator {name!r} is known")
    return name


def _text(state):
    """Returns a state as text that identifies it."""
    if isinstance(state, dict):
        return "{" + ",".join(f"{key}:{_text(value)}" for key, value in sorted(state.items())) + "}"
    if isinstance(state, (tuple, list)):
        return "(" + ",".join(map(_text, state)) + ")"
    return _text(state.tolist()) if hasattr(state, "tolist") else repr(state)
