"""What differs by rank is kept by rank or refused by name, and nobody waits for what won't come."""

import random

import gangline
import numpy
import pytest
import torch
from gang import play
from gangline._random import generator_of


def test_what_differs_is_refused_by_name_on_every_rank_at_once(tmp_path):
    for rank, said in enumerate(play("differ", 2, tmp_path)):
        for name, what in {
            "value": "['epoch']['loss']", "tensor": 'tensor "model.weight"', "array": 'tensor "model.weight"',
            "large": 'tensor "model.weight"', "kind": "['model']",
        }.items():  # fmt: skip
            expected = f"Disagreement: commit step 7: rank 1 saved something else than rank 0: {what}"
            assert said[name].startswith(expected) and "gangline.PerRank" in said[name], (name, said[name])
        for name, refusing in (("refused", 1), ("refused on rank 0", 0)):
            why = "save ['schedule']: builtins.builtin_function_or_method has no safe encoding"
            told = f"Disagreement: commit step 7: rank {refusing} didn't save its part: {why}"
            assert said[name].startswith(f"Refused: {why}" if rank == refusing else told), (name, said[name])
        assert said["equal"] == "done", "the same step, after all that, and whatever the order of keys"
        assert said["metadata"].startswith('Disagreement: commit step 8: rank 1 saved something else than rank 0: metadata "loss"')
        assert "save metadata 'loss': names and values are text, not int" in said["number"]
        assert said["steps"] == [7]
        assert said["one element"].startswith("Disagreement: commit step 1"), "every byte is compared if that is asked for"
        why = "save the state dict itself: builtins.builtin_function_or_method has no safe encoding"
        told = f"Disagreement: commit step 1: rank 1 didn't save its part: {why}"
        assert said["plugged"].startswith(f"Refused: {why}" if rank else told), said["plugged"]
        assert said["compare"].startswith("Refused: open")


def test_each_rank_gets_back_what_was_its_own(tmp_path):
    saved = play("keep", 3, tmp_path)
    assert len({tuple(one["drawn"]) for one in saved}) == 3
    for rank, said in enumerate(play("resume", 3, tmp_path)):
        assert said["refused"] == "done"
        assert said["cursor"] == {"at": rank, "seen": list(range(rank)), "rows": [[rank] * 2] * 2} and said["again"] == [rank]
        assert said["drawn"] == said["all drawn"] == saved[rank]["drawn"]
        assert (said["own"], said["same"]) == (saved[rank]["own"], saved[rank]["same"])
        assert said["w"] == [1.0] * 3 and said["is_in_place"]

    resized = play("resume", 2, tmp_path)
    assert play("resume", 2, tmp_path) == resized, "the same numbers whenever two go on from these three"
    numbers = [number for one in resized for number in one["drawn"][:3] + one["all drawn"][:3] + [one["own"]]]
    before = [number for one in saved for number in one["drawn"][:3] + [one["own"]]]
    assert len(set(numbers)) == 8, "no two ranks draw the same"
    assert not set(numbers) & set(before)
    for said in resized:
        assert said["refused"].startswith("Refused: load ['cursor']: each of 3 ranks saved its own, and 2 load: say by load(")
        assert said["cursor"] == {"keys": ["cursor"], "of": 3} and said["again"] == {"keys": ["again", "cursor"], "of": 3}
        assert said["same"] == saved[0]["same"], "a generator that all ranks had in the same state stays so"

    with gangline.Reader(tmp_path / "store") as reader:
        assert reader.verify(3).is_good
        assert list(reader.list()[0].info.tensors) == ["w"], "what is a rank's own isn't shown as a part of the model"
        whole = reader.load(resized=lambda keys, values: values)
        assert [cursor["at"] for cursor in whole["cursor"]] == [0, 1, 2]
        with pytest.raises(gangline.Refused, match=r"load \['cursor'\]: what is to be made of 3 ranks' values can't be: ZeroDivision"):
            reader.load(resized=lambda keys, values: 1 / 0)


def test_one_process_keeps_its_own_as_well(tmp_path):
    state = {"cursor": gangline.PerRank({"at": torch.arange(3)}), "rng": gangline.rng_state(), "plain": torch.get_rng_state()}
    with gangline.Store(tmp_path) as store:
        store.save(1, state).durable()
        assert "plain" in store.list()[0].info.tensors, "a lone process's tensors are all its model's"
        expected = [random.random(), numpy.random.rand(), torch.rand(1).item()]
        loaded = store.load()
    assert torch.equal(loaded["cursor"]["at"], torch.arange(3)) and torch.equal(loaded["plain"], state["plain"])
    gangline.set_rng_state(loaded["rng"])
    assert [random.random(), numpy.random.rand(), torch.rand(1).item()] == expected
    gangline.set_rng_state(state["rng"])
    assert random.random() == expected[0], "it needn't have been saved"


@pytest.mark.parametrize("value, why", [
    (gangline.PerRank(gangline.PerRank(1)), r"save \['x'\]: it is a gangline.PerRank in another"),
    (gangline.PerRank(print), r"save \['x'\]: builtins.builtin_function_or_method has no safe encoding"),
    (gangline.PerRank({"t": torch.ones(1).to_sparse()}), r"save \['x'\]\['t'\]: it is sparse"),
])  # fmt: skip
def test_what_a_rank_cannot_have_of_its_own(tmp_path, value, why):
    with gangline.Store(tmp_path) as store, pytest.raises(gangline.Refused, match=why):
        store.save(1, {"x": value})


def test_only_what_is_beyond_doubt_is_taken_for_a_generators_state():
    assert generator_of(torch.get_rng_state()) == "torch"
    assert generator_of(torch.zeros_like(torch.get_rng_state())) is None
    assert generator_of(torch.get_rng_state().float()) is None
    assert generator_of(torch.zeros(16, dtype=torch.uint8)) is None
    assert generator_of(random.getstate()) == "python"
    assert generator_of((3, (1,) * 625, "x")) is None and generator_of((1, 2, 3)) is None and generator_of(()) is None
    assert generator_of(numpy.random.get_state()) == "numpy"
    for name in ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"):
        assert generator_of(getattr(numpy.random, name)(1).state) == "numpy"
    assert generator_of({"bit_generator": "PCG64", "state": {"x": 1}}) is None
    assert generator_of({"bit_generator": "os", "state": {}}) is None and generator_of({}) is None
