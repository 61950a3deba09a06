"""Whether two state dicts are the same, to the last bit and the last type."""

import math

import numpy
import torch


def assert_same(found, expected, path=()):
    assert type(found) is type(expected), (path, type(found), type(expected))
    if isinstance(expected, dict):
        assert list(found) == list(expected), path
        for key in expected:
            assert_same(found[key], expected[key], (*path, key))
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), path
        for index, item in enumerate(expected):
            assert_same(found[index], item, (*path, index))
    elif isinstance(expected, torch.Tensor):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), path
        assert torch.equal(_bits(found), _bits(expected)), path
    elif isinstance(expected, (numpy.ndarray, numpy.generic)):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), path
        assert found.tobytes() == expected.tobytes(), path
    elif isinstance(expected, float) and math.isnan(expected):
        assert math.isnan(found), path
    else:
        assert found == expected, path
        assert repr(found) == repr(expected), path  # -0.0, True and 1


def _bits(tensor):
    flat = tensor.detach().resolve_conj().contiguous().reshape(-1)
    return flat.view(torch.uint8) if flat.numel() else torch.empty(0, dtype=torch.uint8)
