"""What can't be saved, or doesn't fit what was saved, is refused with its place; nothing is changed by that."""

import enum
import functools
import json
import types
import warnings

import gangline
import numpy
import pytest
import torch
from gangline import _values
from gangline._state import Scattering


class Plain:
    pass


class Color(enum.IntEnum):
    RED = 1


class Named(tuple):
    pass


def recursive():
    value = []
    value.append(value)
    return value


def quantised():
    with warnings.catch_warnings(action="ignore"):
        return torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8)


def fake():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(2)


def nested():
    with warnings.catch_warnings(action="ignore"):
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


@pytest.mark.parametrize("value, why", [
    (Plain(), "Plain has no safe encoding"),
    (Color.RED, "Color has no safe encoding"),
    (Named(), "Named has no safe encoding"),
    (len, "has no safe encoding"),
    (functools.partial(len), "has no safe encoding"),
    (numpy.array(["a"]), "type str"),
    (numpy.array([None]), "type object"),
    (numpy.datetime64(1, "s"), "datetime64"),
    (numpy.ma.masked_array([1.0]), "MaskedArray has no safe encoding"),
    (torch.ones(2).to_sparse(), "sparse"),
    (quantised(), "quantised"),
    (torch.ones(2, device="meta"), "meta device"),
    (nested(), "nested tensor"),
    (fake(), "FakeTensor, whose inside"),
    (torch.device("cpu"), "device has no safe encoding"),
    ("\ud800", "lone surrogate"),
    (1 << 100_000, "too long"),
    ({Color.RED: 1}, "Color"),
    ({Plain(): 1}, "key of type Plain"),
    (recursive(), "nests more than"),
], ids=lambda value: value if isinstance(value, str) and value.isascii() else "")  # fmt: skip
def test_what_has_no_safe_encoding_is_refused_by_its_path(tmp_path, value, why):
    with gangline.Store(tmp_path) as store:
        with pytest.raises(gangline.Refused, match=why) as refusal:
            store.save(1, {"model": [0, value]})
        assert "['model']" in str(refusal.value)
        assert store.list() == []
        store.save(1, {"model": [0]}).durable()


@pytest.mark.parametrize("state, why", [
    ([1], "save a dict"),
    ({"__gangline__.values": torch.ones(1)}, "reserved"),
    ({"n" * 600: torch.ones(1)}, "512 bytes"),
    ({"a\n": torch.ones(1)}, "control character"),
    ({"": torch.ones(1)}, "empty"),
    ({"deep": torch.ones([1] * 17)}, "16 dimensions"),
])  # fmt: skip
def test_states_that_make_no_checkpoint_are_refused(tmp_path, state, why):
    with gangline.Store(tmp_path) as store, pytest.raises(gangline.Refused, match=why):
        store.save(1, state)


@pytest.mark.parametrize("into, why", [
    ({"a": {"w": torch.ones(2, 4)}}, r"load \['a'\]\['w'\]: .*float32 of shape \[2, 3\].*\[2, 4\]"),
    ({"a": {"w": torch.ones(3, 2)}}, "shape"),
    ({"a": {"w": torch.ones(2, 3).double()}}, "float64"),
    ({"a": {"w": numpy.ones((2, 3))}}, "float64"),
    ({"a": {"x": 1}}, r"\['a'\]\['x'\]: the checkpoint has no such key"),
    ({"list": [0, 1, 2]}, "only 2 items"),
    ({"list": {"0": 1}}, "into has a dict"),
    ({"step": torch.ones(1)}, "into has a Tensor"),
])  # fmt: skip
def test_a_state_dict_that_does_not_fit_is_refused_and_nothing_is_read_into_it(tmp_path, into, why):
    into = {"first": torch.zeros(3), **into}
    with gangline.Store(tmp_path) as store:
        saved = {"first": torch.ones(3), "a": {"w": torch.rand(2, 3)}, "list": [1, 2], "step": 3}
        store.save(1, saved).durable()
        with pytest.raises(gangline.Refused, match=why):
            store.load(into=into)
    assert into["first"].sum() == 0


@pytest.mark.parametrize("step", [-1, 2**64, "1", 1.5])
def test_a_step_is_a_count(tmp_path, step):
    with gangline.Store(tmp_path) as store:
        for ask in (lambda: store.save(step, {}), lambda: store.load(step), lambda: store.verify(step)):
            with pytest.raises(gangline.Refused, match="as a step"):
                ask()


def test_options_and_calls_that_make_no_sense_are_refused(tmp_path):
    with pytest.raises(gangline.Refused, match="keep"):
        gangline.Store(tmp_path, keep=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(gangline.IoFailed, match="file"):
        gangline.Store(tmp_path / "file")
    with gangline.Store(tmp_path / "store") as store:
        with pytest.raises(gangline.Refused, match="metadata"):
            store.save(1, {}, {"note": "x" * (64 << 10)})
        with pytest.raises(gangline.NotFound, match="step 5"):
            store.load(5)
        with pytest.raises(gangline.NotFound, match="step 5"):
            store.verify(5)
        with pytest.raises(gangline.NotFound, match="there is none"):
            store.load()
        assert store.latest() is None
        with pytest.raises(gangline.Refused):
            store.prune(keep=0)
    with pytest.raises(gangline.Closed):
        store.save(1, {})
    with pytest.raises(gangline.Closed):
        store.list()


HOSTILE = [
    b"", b"\xff", b"[]", b"{}", b"nul", b"[" * 100_000,
    b'{"version":3,"value":{}}', b'{"version":2,"value":{"$":"per rank"}}',
    b'{"version":2,"value":{"$":"per rank","key":"a","ranks":1}}', b'{"version":2,"value":{"$":"per rank","key":[],"ranks":1}}',
    b'{"version":2,"value":{"$":"per rank","key":"a","ranks":-1}}', b'{"version":2,"value":{"$":"per rank","key":"a","ranks":1e9}}',
    b'{"version":2,"value":{"$":"per rank","key":"a","ranks":70000,"generator":"torch"}}',
    b'{"version":2,"value":{"$":"per rank","key":"a","ranks":2,"generator":"os"}}',
    b'{"version":1,"value":{"$":"eval","text":"1"}}',
    b'{"version":1,"value":{"$":"tensor"}}', b'{"version":1,"value":{"$":"tensor","as":"os","at":"w"}}',
    b'{"version":1,"value":{"$":"tensor","as":"torch","at":"no"}}',
    b'{"version":1,"value":{"$":"tensor","as":"torch","at":"w","raw":"float32"}}',
    b'{"version":1,"value":{"$":"tensor","as":"torch","at":"w","raw":"complex64"}}',
    b'{"version":1,"value":{"$":"torch.dtype","name":"load"}}', b'{"version":1,"value":{"$":"torch.Size","items":["a"]}}',
    b'{"version":1,"value":{"$":"int","text":"' + b"9" * 5000 + b'"}}', b'{"version":1,"value":{"$":"float","text":"1"}}',
    b'{"version":1,"value":{"$":"bytes","base64":"?"}}', b'{"version":1,"value":{"$":"dict","pairs":[[1]]}}',
    b'{"version":1,"value":{"$":"dict","pairs":[[[],1]]}}', b'{"version":1,"value":{"$":"set","items":[[]]}}',
    b'{"version":1,"value":{"$":"numpy","type":"object","base64":"AAAAAAAAAAA="}}',
    b'{"version":1,"value":{"$":"numpy","type":"float64","base64":"AA=="}}', b'{"version":1,"value":{"$":[]}}',
    b'{"version":1,"value":' + b'{"a":' * 150 + b"1" + b"}" * 150 + b"}",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_values_that_nobody_wrote_are_corrupt_and_never_run(text):
    snapshot = types.SimpleNamespace(values=lambda into: text, tensors={"w": ("F32", (2,))}, where="the file")
    with pytest.raises(gangline.Corrupt, match="the file"):
        Scattering(snapshot, None, None).plan()


def test_an_encoding_over_its_limit_is_refused(monkeypatch):
    monkeypatch.setattr(_values, "BYTES_MAX", 1000)
    with pytest.raises(gangline.Refused, match="make large ones tensors"):
        _values.encode({"text": "x" * 1000}, lambda path, value: _values.NOT_MINE)
    with pytest.raises(gangline.Corrupt, match="more than"):
        _values.decode(json.dumps("x" * 1000).encode(), lambda path, value: None, "it")
