"""Gangs: FSDP2 and other cuts over real processes, saved by some number of ranks and loaded by another."""

import signal

import gangline
import pytest
import torch
import torch.distributed.checkpoint as dcp
from gang import differing, play, whole


def test_a_run_killed_on_four_ranks_goes_on_with_three_as_if_nothing_had_happened(tmp_path):
    (tmp_path / "whole").mkdir(), (tmp_path / "killed").mkdir()
    uninterrupted = play("train", 4, tmp_path / "whole", steps=12)[0]
    play("train", 4, tmp_path / "killed", expect=-signal.SIGKILL, steps=12, kill_at=6)
    left = gangline.Reader(tmp_path / "killed" / "store").list()
    assert left[-1].step in (5, 7)  # 5 was durable; 7 was copied when they were killed, and is there whole or not at all
    resumed = play("train", 3, tmp_path / "killed", steps=12)[0]
    assert [int(step) for step in resumed] == list(range(left[-1].step + 1, 12))
    for step, loss in resumed.items():
        assert loss == pytest.approx(uninterrupted[step], rel=1e-5), step
    assert uninterrupted["11"] < uninterrupted["0"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gang")
    return folder, play("save", 4, folder)


def test_what_four_ranks_cut_is_whole_for_one_and_for_stock_torch(saved):
    folder, told = saved
    assert len({one["hash"] for one in told}) == 1 and told[0]["step"] == 5
    with gangline.Reader(folder / "cut") as reader:
        with pytest.raises(gangline.Refused, match=r"load \['rank'\]: each of 4 ranks saved its own, and 1 load: say by load"):
            reader.load()
        state = reader.load(resized=lambda keys, values: values)
        info = reader.latest()
        assert reader.verify(5).is_good
    names = {"rows": (10, 3), "columns": (3, 10), "few": (2, 3), "one": (1,), "same": (4, 4), "grid": (5, 7)}
    names |= {"twice": (9, 2), "hybrid": (7, 2), "none": (0, 3), "plain": (3, 3), "tied": (6, 3)}
    expected = {name: whole(name, *shape) for name, shape in names.items()}
    assert differing(state, expected) == []
    assert torch.equal(state["half"], whole("half", 10, 3).bfloat16())
    assert torch.equal(state["complex"], whole("c", 5, 2).to(torch.complex64))
    assert state["tied again"] is state["tied"] and (state["rank"], state["notes"]) == ([0, 1, 2, 3], [1, "two"])
    assert (info.world_size, info.metadata, info.tensors["rows"].shape) == (4, {"from": "four"}, (10, 3))

    into = {name: torch.zeros(shape) for name, shape in names.items() if name != "none"}
    stock = dcp.HuggingFaceStorageReader(str(folder / "cut" / "step-0000000005"))
    dcp.load(into, storage_reader=stock, no_dist=True)
    assert differing(into, {name: expected[name] for name in into}) == []


@pytest.mark.parametrize("world_size", [2, 3])
def test_any_number_of_ranks_loads_any_cut(saved, world_size):
    for told in play("load", world_size, saved[0]):
        assert told == {"different": [], "rank": [["rank"], [0, 1, 2, 3]], "notes": [1, "two"], "is_in_place": True, "is_tied": True}


def test_each_rank_reads_its_part_of_what_into_names_and_a_refusal_of_one_touches_nothing_on_any(tmp_path):
    half = 1024 * 512 * 4 // 2
    for told in play("load_some", 2, tmp_path):
        assert half <= told["read"] < 1.2 * half, told
        assert (told["different"], told["keys"], told["missing"]) == ([], ["model", "more"], ["more"])
        assert told["said"].startswith("Refused: load ['other']") and told["touched"] == 0, told


def test_gangs_refuse_together(tmp_path):
    for said in play("refuse", 2, tmp_path):
        assert said["partial"].startswith("Refused: take ['w']: it is a partial sum")
        assert said["other keys"].startswith("Disagreement: commit step 2: rank 1 saved something else than rank 0: ['w0'], tensor \"w0\"; what"), said
        assert said["nothing"].startswith("NotFound")
        assert said["one rank's shape"].startswith("Refused: load ['w']: it was saved as float32 of shape [4, 2]")
        assert "use gangline.DistributedStore" in said["lone"]
        assert said["a flipped bit"] == 3


def test_torch_distributed_checkpoint_through_the_plug_ins(tmp_path):
    expected = {"different": [], "epoch": 4, "nested": {"list": [1.5, None], "text": "x"}}
    assert play("checkpoint", 4, tmp_path) == [expected] * 4
    assert play("reload", 3, tmp_path) == [expected] * 3
