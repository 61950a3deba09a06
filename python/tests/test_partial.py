"""Loading some of a checkpoint: what is asked for is read and nothing else, and what is refused touches nothing."""

import pathlib

import gangline
import numpy
import pytest
import torch
from same import assert_same

SMALL = 1 << 18  # bytes of the model
LARGE = 1 << 25  # bytes of the optimizer's moments


def state():
    return {
        "model": {"head.weight": torch.arange(SMALL // 8, dtype=torch.float32), "head.bias": torch.ones(SMALL // 8)},
        "optimizer": {
            "state": {0: {"exp_avg": torch.rand(LARGE // 8)}, 1: {"exp_avg": torch.rand(LARGE // 8)}},
            "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0, 1]}],
        },
        "layers": [torch.full((3,), 1.0), torch.full((3,), 2.0)],
        "step": 7,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("partial")
    with gangline.Store(path) as store:
        store.save(1, state()).durable()
    return path


def bytes_read(act):
    """What came of it, and the bytes that this process read meanwhile, from the page cache or the disk."""
    count = lambda: int(pathlib.Path("/proc/self/io").read_text().split("rchar:")[1].split()[0])  # noqa: E731
    before = count()
    return act(), count() - before


def zeros():
    return {"head.weight": torch.zeros(SMALL // 8), "head.bias": torch.zeros(SMALL // 8)}


def test_only_the_top_level_keys_of_into_are_read_and_plain_values_come_along(folder):
    into = {"model": zeros()}
    found, read = bytes_read(lambda: gangline.Reader(folder).load(into=into))
    assert found is into and set(found) == {"model", "step"} and found["step"] == 7
    assert_same(found["model"], state()["model"])
    assert read < 2 * SMALL
    _, whole = bytes_read(lambda: gangline.Reader(folder).load())
    assert whole > LARGE


def test_an_optimizer_that_made_no_step_gets_its_moments(folder):
    fresh = {"state": {}, "param_groups": [{"lr": 0.2, "betas": (0.5, 0.5), "params": [0, 1]}]}
    for strict in (True, False):
        found = gangline.Reader(folder).load(into={"optimizer": fresh | {"state": {}}}, strict=strict)["optimizer"]
        assert sorted(found["state"]) == [0, 1] and found["param_groups"][0]["betas"] == (0.9, 0.99)


@pytest.mark.parametrize("only, there, most", [
    (["model"], {"model": ["head.weight", "head.bias"]}, 2 * SMALL),
    ("model.head.weight", {"model": ["head.weight"]}, SMALL),
    (["optimizer.state.0", "step"], {"optimizer": ["state"], "step": None}, LARGE * 3 // 4),
    (["layers"], {"layers": None}, SMALL),
    (["optimizer.param_groups"], {"optimizer": ["param_groups"]}, SMALL),
])  # fmt: skip
def test_names_are_read_and_nothing_else(folder, only, there, most):
    found, read = bytes_read(lambda: gangline.Reader(folder).load(only=only))
    assert {key: list(value) if isinstance(value, dict) else None for key, value in found.items()} == there
    assert read < most
    if "optimizer" in found and "state" in found["optimizer"]:
        assert list(found["optimizer"]["state"]) == [0]


def test_names_within_into_leave_the_rest_as_it_is(folder):
    into = {"model": zeros(), "layers": [torch.zeros(3), torch.zeros(3)], "step": 0, "own": "kept"}
    gangline.Reader(folder).load(into=into, only=["model.head.bias", "layers.1", "optimizer.param_groups"])
    assert into["model"]["head.weight"].sum() == 0 and into["model"]["head.bias"].min() == 1
    assert into["layers"][0].sum() == 0 and into["layers"][1].tolist() == [2, 2, 2]
    assert into["step"] == 0 and into["own"] == "kept" and list(into["optimizer"]) == ["param_groups"]


@pytest.mark.parametrize("options, why", [
    ({"only": ["modell"]}, "nothing of that name; at its top it has 'model', 'optimizer'"),
    ({"only": [""]}, "give names"),
    ({"only": [0]}, "give names"),
    ({"only": ["layers.1"]}, r"only some items of \['layers'\]"),
    ({"verify": "never"}, "say one of 'all', 'first', 'background'"),
    ({"into": {"model": zeros() | {"tail": torch.zeros(1)}}}, "no such key"),
    ({"into": {"model": {"head.bias": torch.zeros(3)}}, "strict": False}, r"\['head.bias'\]: it was saved as float32 of shape"),
    ({"into": {"model": {"head.bias": torch.zeros(SMALL // 8).bfloat16()}}}, "cast=True converts it"),
    ({"into": {"model": {"head.bias": torch.zeros(SMALL // 8).int()}}, "cast": True}, "into has int32"),
    ({"into": {"model": {"head.bias": torch.zeros(3).bfloat16()}}, "cast": True}, "into has bfloat16"),
    ({"into": {"optimizer": torch.zeros(1)}, "strict": False}, "into has a Tensor"),
])  # fmt: skip
def test_what_is_refused_touches_nothing(folder, options, why):
    first = torch.zeros(3)
    if "into" in options:
        options = options | {"into": {"layers": [first], **options["into"]}}
    with pytest.raises(gangline.Refused, match=why):
        gangline.Reader(folder).load(**options)
    assert first.sum() == 0


def test_what_differs_is_left_and_told_if_that_is_wanted(folder):
    into = {"model": {"head.weight": torch.zeros(SMALL // 8), "tail": torch.full((2,), 5.0)}, "step": 0, "epoch": 3}
    reader = gangline.Reader(folder)
    with pytest.warns(gangline.PartialLoadWarning, match="has no model.tail, epoch"):
        found, read = bytes_read(lambda: reader.load(into=into, strict=False))
    assert found is into and set(into) == {"model", "step", "epoch"} and set(into["model"]) == {"head.weight", "tail"}
    assert into["model"]["tail"].tolist() == [5, 5] and into["epoch"] == 3 and into["step"] == 7
    assert torch.equal(into["model"]["head.weight"], state()["model"]["head.weight"]) and read < SMALL
    told = reader.loaded
    assert (told.step, told.missing) == (1, ("model.tail", "epoch"))
    assert set(told.unexpected) == {"model.head.bias", "optimizer", "layers"}


@pytest.mark.parametrize("saved, wanted", [
    (torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32), (torch.float64, torch.float16), (torch.float32, torch.float8_e4m3fn),
])  # fmt: skip
def test_floats_are_converted_when_asked(tmp_path, saved, wanted):
    weight = torch.linspace(-3, 3, 1001).to(saved)
    with gangline.Store(tmp_path) as store:
        store.save(1, {"w": weight, "same": torch.ones(2)}).durable()
        into = {"w": torch.zeros(1001, dtype=wanted), "same": torch.zeros(2)}
        memory = into["w"]
        store.load(into=into, cast=True)
    assert into["w"] is memory and torch.equal(memory.float(), weight.to(wanted).float()) and into["same"].min() == 1


def test_arrays_of_numpy_and_jax_are_converted_too(tmp_path):
    jax = pytest.importorskip("jax")
    array = numpy.linspace(0, 1, 12, dtype=numpy.float32)
    with gangline.Store(tmp_path) as store:
        store.save(1, {"numpy": array, "jax": jax.numpy.asarray(array)}).durable()
        into = {"numpy": numpy.zeros(12, numpy.float16), "jax": jax.numpy.zeros(12, jax.numpy.bfloat16)}
        store.load(into=into, cast=True)
    assert into["numpy"].tolist() == array.astype(numpy.float16).tolist()
    assert into["jax"].dtype == jax.numpy.bfloat16 and (into["jax"] == jax.numpy.asarray(array, jax.numpy.bfloat16)).all()


def test_casting_takes_memory_for_some_tensors_at_a_time(folder, monkeypatch):
    from gangline import _state

    held, batches = state(), []
    monkeypatch.setattr(_state, "_BATCH_BYTES_MAX", LARGE // 4)
    original = _state._batches
    monkeypatch.setattr(_state, "_batches", lambda asides: (batches.append(len(batch)) or batch for batch in original(asides)))
    into = {"optimizer": {"state": {at: {"exp_avg": torch.zeros(LARGE // 8).half()} for at in (0, 1)}}, "model": zeros()}
    into["model"] = {name: tensor.bfloat16() for name, tensor in into["model"].items()}
    gangline.Reader(folder).load(into=into, cast=True)
    assert sorted(batches) == [1, 1, 2], "two large ones alone, two small ones together"
    assert torch.equal(into["model"]["head.bias"], held["model"]["head.bias"].bfloat16())


def test_what_another_machine_damaged_is_told_at_the_next_call_after_a_load_that_did_not_wait(tmp_path):
    with gangline.Store(tmp_path) as store:
        store.save(1, {"w": torch.ones(5000)}).durable()
        assert store.load(1, verify="background")["w"].min() == 1
        store.loaded.verified()
        flip(tmp_path)
        for ask in (lambda: store.loaded.verified(), lambda: store.save(2, {}), lambda: store.load(1)):
            store.load(1, verify="background", only=["w"])
            wait_quietly(store)
            with pytest.raises(gangline.Corrupt, match="tensor .w."):
                ask()
        store.save(2, {"w": 1}).durable()
        store.load(1, verify="background")
        with pytest.raises(gangline.Corrupt):
            store.close()


def flip(folder):
    """Flips a bit of the tensor of ones."""
    [shard] = (folder / "step-0000000001").glob("*.safetensors")
    data = bytearray(shard.read_bytes())
    data[data.index(torch.ones(100).numpy().tobytes())] ^= 1
    shard.write_bytes(data)


def wait_quietly(store):
    """Waits for the check without being told what it found."""
    with pytest.raises(gangline.Corrupt):
        store.loaded._verification.wait()


def test_what_was_found_good_is_hashed_again_once_its_file_has_changed(tmp_path, monkeypatch):
    monkeypatch.setenv("GANGLINE_CACHE_DIR", str(tmp_path / "cache"))
    with gangline.Store(tmp_path / "store") as store:
        store.save(1, {"w": torch.ones(5000)}).durable()
        for _ in range(2):
            assert store.load(verify="first")["w"].min() == 1
        assert len(list((tmp_path / "cache" / "verified").iterdir())) == 1
        flip(tmp_path / "store")
        with pytest.raises(gangline.Corrupt):
            store.load(1, verify="first")
