"""What torch wrote comes in without being run."""

import json
import os
import pickle
import subprocess
import sys

import gangline
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from gang import play, whole
from gangline.torch import import_checkpoint
from same import assert_same

STATE = {
    "model": {"w": torch.rand(300, 5), "list": [torch.ones(2), torch.rand(3).bfloat16()], "view": torch.rand(4, 6).t()[1:3]},
    "epoch": 4, "notes": {"rate": 0.1, "names": ["a", None]},
}  # fmt: skip


class Hostile:
    def __reduce__(self):
        return os.system, ("touch /tmp/gangline-was-run",)


@pytest.fixture
def store(tmp_path):
    with gangline.Store(tmp_path / "store") as store:
        yield store


def test_a_folder_that_torch_wrote_comes_in(tmp_path, store):
    dcp.save(STATE, checkpoint_id=tmp_path / "dcp", no_dist=True)
    saved = import_checkpoint(tmp_path / "dcp", store, 7)
    assert saved.step == 7
    assert_same(store.load(7), STATE)
    assert store.latest().metadata == {"imported from": str(tmp_path / "dcp")}


def test_a_folder_that_four_ranks_wrote_is_put_together(tmp_path, store):
    play("classic", 4, tmp_path)
    import_checkpoint(tmp_path / "classic", store, 1)
    found = store.load(1)
    names = {"rows": (10, 3), "columns": (3, 10), "grid": (5, 7), "same": (4, 4), "twice": (9, 2), "few": (2, 3), "plain": (3, 3)}
    for name, shape in names.items():
        assert torch.equal(found["model"][name], whole(name, *shape)), name
    assert found["epoch"] == 3


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_file_that_torch_wrote_comes_in(tmp_path, store, is_zip):
    torch.save(STATE, tmp_path / "state.pt", _use_new_zipfile_serialization=is_zip)
    import_checkpoint(tmp_path / "state.pt", store, 3)
    assert_same(store.load(3), STATE | {"model": STATE["model"] | {"view": STATE["model"]["view"].contiguous()}})


def test_pickles_with_code_are_refused_by_the_name_of_what_they_ask_for(tmp_path, store):
    torch.save({"model": {"w": torch.ones(2)}, "x": Hostile()}, tmp_path / "hostile.pt")
    dcp.save({"w": torch.ones(2), "x": Hostile()}, checkpoint_id=tmp_path / "values", no_dist=True)
    dcp.save({"w": torch.ones(2)}, checkpoint_id=tmp_path / "described", no_dist=True)
    (tmp_path / "described" / ".metadata").write_bytes(pickle.dumps(Hostile()))
    for name, where in {"hostile.pt": "", "values": "'x': ", "described": ""}.items():
        with pytest.raises(gangline.Refused, match=f"{name}.*: {where}its pickle asks for posix.system, which is") as refused:
            import_checkpoint(tmp_path / name, store, 1)
        assert "safe_globals" not in str(refused.value), "no advice to run it"
    assert not os.path.exists("/tmp/gangline-was-run") and store.list() == []


def test_what_is_no_checkpoint_is_told_as_such(tmp_path, store):
    with pytest.raises(gangline.IoFailed, match=".metadata"):
        import_checkpoint(tmp_path, store, 1)
    with pytest.raises(gangline.IoFailed, match="nothing.pt"):
        import_checkpoint(tmp_path / "nothing.pt", store, 1)
    torch.save([torch.ones(1)], tmp_path / "list.pt")
    with pytest.raises(gangline.Refused, match="a list, not a state dict"):
        import_checkpoint(tmp_path / "list.pt", store, 1)
    (tmp_path / ".metadata").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(gangline.Corrupt, match="describes no checkpoint"):
        import_checkpoint(tmp_path, store, 1)
    for torn in (b"", b"\x80\x04", pickle.dumps(STATE["notes"])[:-3], pickle.dumps({"a": frozenset({1})}, protocol=4)):
        (tmp_path / "torn.pt").write_bytes(torn)
        (tmp_path / ".metadata").write_bytes(torn)
        for source in (tmp_path, tmp_path / "torn.pt"):
            with pytest.raises(gangline.Error, match=str(source)) as refused:
                import_checkpoint(source, store, 1)
            assert "weights_only" not in str(refused.value), "no advice to run it"
    dcp.save(STATE, checkpoint_id=tmp_path / "torn", no_dist=True)
    [file] = (tmp_path / "torn").glob("*.distcp")
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(gangline.Error, match="import .*torn"):
        import_checkpoint(tmp_path / "torn", store, 1)
    assert store.list() == []


@pytest.mark.parametrize("is_folder", [True, False])
def test_the_command_line_has_python_import_what_torch_wrote(tmp_path, is_folder):
    if is_folder:
        dcp.save(STATE, checkpoint_id=tmp_path / "state", no_dist=True)
    else:
        torch.save(STATE, tmp_path / "state")
    run = [os.environ["GANGLINE_BINARY"], "checkpoint", "import", tmp_path / "state", tmp_path / "store", "--python", sys.executable]
    said = subprocess.run([*run, "--step", "5", "--json"], check=True, stdout=subprocess.PIPE).stdout
    told = json.loads(said)
    with gangline.Store(tmp_path / "store") as store:
        state = STATE if is_folder else STATE | {"model": STATE["model"] | {"view": STATE["model"]["view"].contiguous()}}
        assert_same(store.load(5), state)
        assert (told["step"], told["content_hash"], told["files"]) == (5, store.latest().content_hash, 1)
    again = subprocess.run([*run, "--step", "5"], stderr=subprocess.PIPE, text=True)
    assert again.returncode == 1 and "choose another --step" in again.stderr
    torch.save({"x": Hostile()}, tmp_path / "hostile.pt")
    run[3] = tmp_path / "hostile.pt"
    hostile = subprocess.run([*run, "--step", "6"], stderr=subprocess.PIPE, text=True)
    assert hostile.returncode == 1 and "its pickle asks for posix.system" in hostile.stderr, hostile.stderr


def test_weights_that_the_command_line_imported_are_a_flat_dict_and_go_into_a_nested_one(tmp_path):
    weights = {"head.weight": torch.rand(3, 2), "head.bias": torch.rand(3).bfloat16(), "scale": torch.tensor(2.0)}
    safetensors.torch.save_file(weights, tmp_path / "model.safetensors")
    run = [os.environ["GANGLINE_BINARY"], "checkpoint", "import", tmp_path / "model.safetensors", tmp_path / "store", "--step", "5"]
    subprocess.run([*run, "--prefix", "model."], check=True, stdout=subprocess.DEVNULL)
    with gangline.Store(tmp_path / "store") as store:
        found = store.load()
        assert {name.removeprefix("model.") for name in found} == set(weights)
        assert all(torch.equal(found["model." + name], weights[name]) for name in weights)
        model = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
        assert store.load(5, into={"model": model})["model"] is model
        assert all(torch.equal(model[name], weights[name]) for name in weights)
        with pytest.raises(gangline.Refused, match="no such key"):
            store.load(5, into={"model": {**model, "tail": torch.zeros(1)}})
        store.save(6, {"model": model, "step": 6}).durable()
        assert store.load()["step"] == 6
