"""Others read what we wrote, and frameworks beyond torch come back as they were."""

import importlib.metadata
import types

import gangline
import jax
import jax.numpy
import ml_dtypes
import numpy
import pytest
import torch
from gangline import _plan, _values
from safetensors.torch import load_file
from same import assert_same
from torch.distributed import checkpoint as dcp


def test_the_package_says_its_version():
    assert gangline.__version__ == importlib.metadata.version("gangline") and "__version__" in gangline.__all__


def test_stock_safetensors_reads_every_file(tmp_path):
    nested = {"count": torch.tensor(3), "eight": torch.ones(2).to(torch.float8_e4m3fn)}
    state = {"w": torch.rand(3, 5), "half": torch.rand(7).bfloat16(), "n": nested}
    with gangline.Store(tmp_path) as store:
        store.save(1, state).durable()
    [file] = tmp_path.glob("step-0000000001/*.safetensors")
    found = load_file(file)
    flat = {"w": state["w"], "half": state["half"], "n.count": nested["count"], "n.eight": nested["eight"]}
    assert_same({name: found[name] for name in flat}, flat)
    assert set(found) - set(flat) == {"__gangline__.values"}


def test_stock_torch_reads_what_a_lone_store_and_the_plug_in_wrote(tmp_path):
    from gangline.torch import StorageReader, StorageWriter

    state = {"model": {"w": torch.rand(3, 5), "b": torch.rand(5)}}
    with gangline.Store(tmp_path / "store") as store:
        store.save(1, state).durable()
    dcp.save({**state, "epoch": 4}, storage_writer=StorageWriter(tmp_path / "plugged", 1), no_dist=True)
    zeros = lambda: {"model": {"w": torch.zeros(3, 5), "b": torch.zeros(5)}}  # noqa: E731
    for folder in ("store", "plugged"):
        stock, ours = zeros(), zeros()
        dcp.load(stock, storage_reader=dcp.HuggingFaceStorageReader(str(tmp_path / folder / "step-0000000001")), no_dist=True)
        dcp.load(ours, storage_reader=StorageReader(tmp_path / folder), no_dist=True)
        assert_same([stock, ours], [state, state])


def test_the_plug_ins_take_values_without_pickle_and_refuse_the_rest(tmp_path):
    from gangline.torch import StorageReader, StorageWriter

    class Plain:
        pass

    state = {"array": numpy.arange(3.0), "scalar": numpy.float32(2.5), "deep": {"list": [1, (2, None)], "text": "x"}}
    dcp.save(state, storage_writer=StorageWriter(tmp_path, 3, metadata={"note": "n"}), no_dist=True)
    into = {"array": None, "scalar": None, "deep": {"list": None, "text": None}}
    dcp.load(into, storage_reader=StorageReader(tmp_path), no_dist=True)
    assert into["array"].tolist() == [0, 1, 2] and into["scalar"] == 2.5 and into["deep"] == state["deep"]
    assert gangline.Reader(tmp_path).latest().metadata == {"note": "n"}
    refusals = [
        ({"x": Plain()}, "no safe encoding"), ({"x": torch.ones(2).to(torch.complex128)}, "complex128"),
        ({"__gangline__.x": torch.ones(1)}, "reserved"), ({"x": torch.ones(2).to_sparse()}, "sparse"),
    ]  # fmt: skip
    for refused, why in refusals:
        with pytest.raises(dcp.CheckpointException, match=why):
            dcp.save(refused, storage_writer=StorageWriter(tmp_path, 4), no_dist=True)
    with pytest.raises(dcp.CheckpointException, match="nothing"):
        dcp.load({"nothing": 1}, storage_reader=StorageReader(tmp_path), no_dist=True)
    assert [listed.step for listed in gangline.Reader(tmp_path).list()] == [3]


NESTED = {
    "model": {"w": torch.rand(3, 5), "list": [torch.ones(2), {"deep": torch.zeros(1)}], "half": torch.rand(2).bfloat16()},
    "epoch": 4, "array": numpy.arange(3.0), "$": {"$": 1}, "values": [1, (2.5, None)], "scalar": numpy.float32(1.5), "none": {},
}  # fmt: skip


def test_a_store_loads_what_the_plug_in_wrote(tmp_path):
    from gangline.torch import StorageWriter

    dcp.save(NESTED, storage_writer=StorageWriter(tmp_path, 1), no_dist=True)
    expected = {key: value for key, value in NESTED.items() if key != "none"}  # torch's flattening drops empty dicts
    assert_same(gangline.Reader(tmp_path).load(), expected | {"scalar": numpy.asarray(NESTED["scalar"])})
    into = {"model": {"w": torch.zeros(3, 5)}, "epoch": 0}
    memory = into["model"]["w"]
    assert gangline.Reader(tmp_path).load(into=into)["epoch"] == 4 and torch.equal(memory, NESTED["model"]["w"])


def test_the_plug_in_loads_all_that_a_store_wrote(tmp_path):
    from gangline.torch import StorageReader

    tied = torch.rand(2)
    state = {**NESTED, "tied": tied, "again": tied, "complex": torch.rand(2, 3).to(torch.complex64), "pair": (1, torch.ones(1))}
    with gangline.Store(tmp_path) as store:
        store.save(1, state).durable()
    model = {"w": torch.zeros(3, 5), "list": [torch.zeros(2), {"deep": torch.ones(1)}], "half": torch.zeros(2).bfloat16()}
    into = {"model": model, "epoch": 0, "array": None, "$": {"$": 0}, "values": [0], "scalar": None}
    into |= {"tied": torch.zeros(2), "again": torch.zeros(2), "complex": torch.zeros(2, 3, dtype=torch.complex64)}
    dcp.load(into, storage_reader=StorageReader(tmp_path), no_dist=True)
    assert_same(into, {key: state[key] for key in into})
    with pytest.raises(dcp.CheckpointException, match="'pair': there are tensors in it"):
        dcp.load({"pair": (1, torch.zeros(1))}, storage_reader=StorageReader(tmp_path), no_dist=True)


@pytest.mark.parametrize("plan", [
    [], {"w": "w"}, {"w": ()}, {"w": (1.5,)}, {"w": ("a", 1), "v": ("a", 2)}, {"w": ("a",), "v": ("a", "b")}, {"w": ("a",), "v": ("a",)},
])  # fmt: skip
def test_keys_that_no_planner_writes_are_corrupt(tmp_path, plan):
    text = _values.encode(plan, lambda path, value: _values.NOT_MINE)
    tensors = {"w": ("F32", (1,)), "v": ("F32", (1,)), _plan.PLAN: ("U8", (len(text),))}
    snapshot = types.SimpleNamespace(bytes=lambda name: text, tensors=tensors, where="the file")
    with pytest.raises(gangline.Corrupt, match="of the file"):
        _plan.tree(snapshot)


def test_the_plug_in_names_a_flipped_bit_and_a_changed_type(tmp_path):
    from gangline.torch import StorageReader, StorageWriter

    dcp.save({"w": torch.full((100,), 3.0)}, storage_writer=StorageWriter(tmp_path, 1), no_dist=True)
    with pytest.raises(dcp.CheckpointException, match="saved as float32"):
        dcp.load({"w": torch.zeros(100, dtype=torch.float64)}, storage_reader=StorageReader(tmp_path), no_dist=True)
    [file] = tmp_path.glob("step-0000000001/*.safetensors")
    data = bytearray(file.read_bytes())
    data[data.index(torch.full((100,), 3.0).numpy().tobytes())] ^= 1
    file.write_bytes(data)
    with pytest.raises(dcp.CheckpointException, match='tensor "w": its hash'):
        dcp.load({"w": torch.zeros(100)}, storage_reader=StorageReader(tmp_path), no_dist=True)
    with pytest.raises(dcp.CheckpointException, match="step 7"):
        dcp.load({"w": torch.zeros(100)}, storage_reader=StorageReader(tmp_path, step=7), no_dist=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "complex64", "float8_e4m3fn"])
def test_jax_arrays_come_back_as_jax_arrays(tmp_path, dtype):
    array = jax.numpy.arange(12).reshape(3, 4).astype(dtype)
    with gangline.Store(tmp_path) as store:
        store.save(1, {"params": {"w": array, "scalar": array[1, 2], "empty": array[:0]}}).durable()
        found = store.load()["params"]
        into = {"params": {"w": jax.numpy.zeros((3, 4), dtype), "scalar": array[0, 0], "empty": array[:0]}}
        store.load(into=into)
    for state in (found, into["params"]):
        assert isinstance(state["w"], jax.Array) and state["w"].dtype == array.dtype
        assert (state["w"] == array).all() and state["scalar"] == array[1, 2] and state["empty"].shape == (0, 4)


def test_the_plug_in_keeps_types_that_safetensors_has_got_names_for(tmp_path):
    from gangline.torch import StorageReader, StorageWriter

    byte = torch.arange(24, dtype=torch.uint8).reshape(3, 8)
    state = {"c": torch.complex(torch.rand(3, 2), torch.rand(3, 2)), "e8m0": byte.view(torch.float8_e8m0fnu)}
    dcp.save(state, storage_writer=StorageWriter(tmp_path, 1), no_dist=True)
    into = {"c": torch.zeros(3, 2, dtype=torch.complex64), "e8m0": torch.zeros(3, 8, dtype=torch.uint8).view(torch.float8_e8m0fnu)}
    dcp.load(into, storage_reader=StorageReader(tmp_path), no_dist=True)
    assert torch.equal(into["c"], state["c"]) and torch.equal(into["e8m0"].view(torch.uint8), byte)
    [file] = tmp_path.glob("step-0000000001/*.safetensors")
    assert torch.equal(load_file(file)["c"], state["c"])


def test_numpy_arrays_of_the_small_types(tmp_path):
    state = {name: numpy.arange(6).astype(getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")}
    with gangline.Store(tmp_path) as store:
        store.save(1, state).durable()
        assert_same(store.load(), state)


def test_random_keys_of_jax_say_how_to_save_them(tmp_path):
    with gangline.Store(tmp_path) as store, pytest.raises(gangline.Refused, match="key_data"):
        store.save(1, {"key": jax.random.key(0)})
