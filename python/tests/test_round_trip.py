"""What is saved comes back: every type of element, every shape, every value, bit for bit."""

import collections
import math

import gangline
import numpy
import pytest
import torch
from same import assert_same

TYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8),
    *(torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
    torch.float8_e8m0fnu,
]


def there_and_back(path, state, **options):
    with gangline.Store(path) as store:
        store.save(1, state).durable()
        return store.load(1, **options)


def bits(dtype, *shape):
    """A tensor of random bits; for bool, of truths."""
    torch.manual_seed(len(shape))
    if dtype is torch.bool:
        return torch.rand(shape) < 0.5
    size = torch.empty(0, dtype=dtype).element_size()
    flat = torch.randint(0, 256, (math.prod(shape) * size,), dtype=torch.uint8)
    return flat.view(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_torch_tensors_of_every_type_and_shape(tmp_path, dtype):
    state = {"matrix": bits(dtype, 5, 7), "scalar": bits(dtype, 1)[0], "empty": bits(dtype, 3, 0), "long": bits(dtype, 4099)}
    state["nested"] = [{"deep": bits(dtype, 2, 3, 4)}, (bits(dtype, 1, 1),)]
    assert_same(there_and_back(tmp_path, state), state)


def test_pairs_of_4_bit_floats(tmp_path):
    pairs = bits(torch.float4_e2m1fn_x2, 3, 8)
    with gangline.Store(tmp_path) as store:
        store.save(1, {"w": pairs, "empty": pairs[:0]}).durable()
        w = store.latest().tensors["w"]
        assert (w.type, tuple(w.shape)) == ("F4", (3, 16)), "as safetensors counts them"
        into = {"w": bits(torch.float4_e2m1fn_x2, 3, 8).view(torch.uint8).zero_().view(torch.float4_e2m1fn_x2)}
        for found in (store.load(), store.load(into=into)):
            assert found["w"].dtype is pairs.dtype
            assert torch.equal(found["w"].view(torch.uint8), pairs.view(torch.uint8))
        with pytest.raises(gangline.Refused, match="4-bit floats without dimensions"):
            store.save(2, {"w": pairs[0, 0]})


@pytest.mark.parametrize("dtype", ["complex64", "float8_e8m0fnu"])
def test_what_was_kept_raw_before_its_type_had_a_name_is_loaded(tmp_path, monkeypatch, dtype):
    from gangline import _types

    tensor = bits(getattr(torch, dtype), 4, 3)
    with monkeypatch.context() as before, gangline.Store(tmp_path) as store:
        before.delitem(_types.STORED, dtype)
        before.setitem(_types.RAW, dtype, tensor.element_size())
        store.save(1, {"w": tensor}).durable()
        w = store.latest().tensors["w"]
        assert w.type == "U8"
    with gangline.Store(tmp_path) as store:
        into = {"w": torch.zeros(4, 3).to(tensor.dtype)}
        assert_same([store.load(), store.load(into=into)], [{"w": tensor}] * 2)


@pytest.mark.parametrize("dtype", "f8 f4 f2 i8 i4 i2 i1 u8 u4 u2 u1 ? c8 c16 >f4 >i8".split())
def test_numpy_arrays_of_every_type(tmp_path, dtype):
    array = numpy.arange(24).reshape(2, 3, 4).astype(dtype)
    state = {"array": array, "scalar": array[1, 1, 1], "zero": numpy.array(3, dtype), "empty": array[:0]}
    found = there_and_back(tmp_path, state)
    native = {key: value.astype(value.dtype.newbyteorder("=")) for key, value in state.items()}
    assert_same(found, native)


def test_values_of_every_kind(tmp_path):
    state = {
        "none": None, "yes": True, "no": False, "one": 1, "huge": -(2**200), "edge": 2**53, "float": 0.1, "minus": -0.0,
        "inf": math.inf, "-inf": -math.inf, "nan": math.nan, "tiny": 5e-324, "complex": complex(-0.0, math.inf),
        "text": "\u00e9\U0001f600\n\0", "bytes": bytes(range(256)), "tuple": (1, (2.0, [])), "size": torch.Size([3, 4]),
        "dtype": torch.bfloat16, "set": {1, 2}, "frozen": frozenset({"a"}), "ordered": collections.OrderedDict(b=1, a=2),
        "keys": {0: "int", "0": "text", None: 1, 2.5: 2, True: 3, (1, "a"): 4, b"x": 5}, "$": {"$": "tensor"}, "": [],
    }  # fmt: skip
    del state["keys"][True]
    assert_same(there_and_back(tmp_path, state), state)


def test_optimizer_state_goes_back_into_its_optimizer(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}
    found = there_and_back(tmp_path, state)
    assert_same(found, state)
    optimizer.load_state_dict(found["optimizer"])
    model.load_state_dict(found["model"])


@pytest.mark.parametrize("make", [
    lambda t: t.t(), lambda t: t[::2], lambda t: t[:, 1:3], lambda t: t[0].expand(5, 6), lambda t: t.to(torch.complex64).conj(),
    lambda t: t.to(torch.complex64).conj().imag, lambda t: torch.nn.Parameter(t), lambda t: t.requires_grad_() * 1,
])  # fmt: skip
def test_views_are_saved_as_they_look(tmp_path, make):
    state = {"view": make(torch.arange(24.0).reshape(4, 6))}
    found = there_and_back(tmp_path, state)
    assert_same(found, {"view": state["view"].detach().clone()})
    array = {"view": numpy.arange(24).reshape(4, 6)[::-1, ::2]}
    assert_same(there_and_back(tmp_path, array), {"view": array["view"].copy()})


def test_tied_tensors_are_written_once_and_are_tied_again(tmp_path):
    weight = torch.rand(1000, 100)
    state = {"embedding": weight, "head": weight, "part": weight[:10], "same": weight.clone()}
    found = there_and_back(tmp_path, state)
    assert_same(found, state)
    assert found["embedding"] is found["head"]
    assert found["embedding"] is not found["same"]
    [listed] = gangline.Store(tmp_path).list()
    assert sorted(listed.info.tensors) == ["embedding", "part", "same"]


def test_loading_into_a_state_dict_keeps_its_memory_and_replaces_the_rest(tmp_path):
    saved = {"model": {"a": torch.rand(3, 4), "b": torch.rand(4)}, "array": numpy.arange(3.0), "step": 7, "more": [1, 2]}
    into = {
        "model": {"a": torch.zeros(4, 3).t(), "b": torch.nn.Parameter(torch.zeros(4))},
        "array": numpy.zeros(3), "step": 0, "more": [0],
    }  # fmt: skip
    memory = into["model"]["a"], into["model"]["b"], into["array"]
    found = there_and_back(tmp_path, saved, into=into)
    assert found is into
    now = found["model"]["a"], found["model"]["b"], found["array"]
    assert all(one is other for one, other in zip(now, memory, strict=True))
    assert torch.equal(memory[0], saved["model"]["a"]) and torch.equal(memory[1].data, saved["model"]["b"])
    assert memory[2].tolist() == [0, 1, 2] and found["step"] == 7 and found["more"] == [1, 2]


def test_loading_into_tied_parameters(tmp_path):
    tied = torch.rand(3)
    into = {"a": torch.zeros(3)}
    into["b"] = into["a"]
    found = there_and_back(tmp_path, {"a": tied, "b": tied}, into=into)
    assert found["a"] is found["b"] and torch.equal(found["a"], tied)
    apart = {"a": torch.zeros(3), "b": torch.zeros(3)}
    found = gangline.Store(tmp_path).load(into=apart)
    assert torch.equal(found["a"], tied) and torch.equal(found["b"], tied)


def test_names_that_collide_are_told_apart(tmp_path):
    state = {"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}, "a.b#2": torch.full((1,), 2.0)}
    assert_same(there_and_back(tmp_path, state), state)


def test_the_state_may_change_as_soon_as_save_returns(tmp_path):
    state = {"w": torch.ones(1 << 20)}
    with gangline.Store(tmp_path) as store:
        save = store.save(3, state, {"note": "first"})
        assert save.staged()
        state["w"].zero_()
        saved = save.durable()
        assert (saved.step, saved.removed, saved.retention_error, save.done()) == (3, (), None, True)
        assert store.load()["w"].min() == 1
        info = store.latest()
    assert (info.step, info.metadata, info.world_size) == (3, {"note": "first"}, 1)
    assert info.tensors == {"w": gangline.TensorInfo("F32", (1 << 20,), 4 << 20)}
    assert info.content_hash == saved.content_hash


def test_old_checkpoints_go_and_prune_says_first_what_it_would_do(tmp_path):
    with gangline.Store(tmp_path, keep=None) as store:
        for step in range(5):
            store.save(step, {"step": step}).durable()
        assert [listed.step for listed in store.list()] == [0, 1, 2, 3, 4]
        assert store.prune(keep=3, dry_run=True) == gangline.Pruned((0, 1), (2, 3, 4))
        assert len(store.list()) == 5
        assert store.prune(keep=3) == gangline.Pruned((0, 1), (2, 3, 4))
        assert store.load() == {"step": 4} and store.load(2) == {"step": 2}
    with gangline.Store(tmp_path, keep=2) as store:
        assert store.save(9, {"step": 9}).durable().removed == (2, 3)
