"""torch's own data loaders say where they are, and go on from there."""

import random

import gangline
import pytest
import torch
from gangline._loaders import resumable
from gangline._random import states_of_rank
from gangline.lightning import _resized
from torch.utils.data import DataLoader, Dataset, IterableDataset


class Numbers(Dataset):
    def __init__(self, count=10):
        self.count, self.asked = count, []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.asked.append(index)
        return index, random.random()


class Owner:
    """The loop that a loader belongs to."""

    over, loaded, put = False, 0, 0

    def put_back(self):
        self.put += 1

    def is_over(self):
        return self.over

    def ahead(self):
        return self.loaded


def batches(loader):
    return [[numbers.tolist(), noise.tolist()] for numbers, noise in loader]


def seed(value):
    random.seed(value), torch.manual_seed(value)


def halfway(owner, **options):
    """(State after two batches of an epoch, the generators' states then, the batches that were to come)."""
    seed(1)
    loader = resumable(DataLoader(Numbers(), 2, shuffle=True, **options), owner)
    batches(loader)
    begun = iter(loader)
    next(begun), next(begun)
    state, generators = loader.state_dict(), (random.getstate(), torch.get_rng_state())
    return state, generators, batches(begun)


def resume(loader, state, generators):
    random.setstate(generators[0]), torch.set_rng_state(generators[1])
    loader.load_state_dict(state)
    return batches(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_goes_on_in_the_middle_of_an_epoch_and_begins_the_next_as_ever(workers):
    owner, data = Owner(), Numbers()
    state, generators, expected = halfway(owner, num_workers=workers)
    loader = resumable(DataLoader(data, 2, shuffle=True, num_workers=workers), owner)
    seed(5)
    assert resume(loader, state, generators) == expected and len(expected) == 3
    assert len(data.asked) == (0 if workers else 6), "what is passed over isn't loaded without workers"
    assert len(batches(loader)) == 5


def test_a_generator_of_its_own_and_the_end_of_an_epoch():
    owner = Owner()
    state, generators, expected = halfway(owner, generator=torch.Generator().manual_seed(3))
    other = resumable(DataLoader(Numbers(), 2, shuffle=True, generator=torch.Generator()), owner)
    assert resume(other, state, generators) == expected
    owner.over = True
    state, generators = other.state_dict(), (random.getstate(), torch.get_rng_state())
    expected = batches(other)
    again = resumable(DataLoader(Numbers(), 2, shuffle=True, generator=torch.Generator()), owner)
    assert resume(again, state, generators) == expected
    with pytest.raises(gangline.Refused, match="had 1 generators of its own, and has 0"):
        resume(resumable(DataLoader(Numbers(), 2), owner), state, generators)


def test_what_was_loaded_and_not_trained_on_comes_again():
    owner = Owner()
    loader = resumable(DataLoader(Numbers(), 2), owner)
    begun = iter(loader)
    next(begun), next(begun)
    owner.loaded = 1
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert loader.state_dict() is state, "until it has been begun"
    assert next(iter(loader))[0].tolist() == [2, 3] and owner.put == 2


def test_a_loader_that_has_become_shorter_is_refused():
    owner = Owner()
    state, generators, _ = halfway(owner)
    with pytest.raises(gangline.Refused, match="2 batches of the epoch were trained on, and the data loader has only 1"):
        resume(resumable(DataLoader(Numbers(2), 2, shuffle=True), owner), state, generators)


def test_the_callers_loader_stays_as_it_is_and_others_are_left_alone():
    class Stateful(DataLoader):
        def state_dict(self):
            return {}

    for loader in (Stateful(Numbers(), 2), [1, 2, 3]):
        assert resumable(loader, Owner()) is loader
    loader = DataLoader(Numbers(), 2)
    made = resumable(loader, Owner())
    assert type(loader) is DataLoader and isinstance(made, DataLoader) and made.dataset is loader.dataset and len(made) == 5


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(4))


@pytest.mark.parametrize("loader, why", [
    (DataLoader(Numbers(), 2, num_workers=1, persistent_workers=True), "persistent_workers=True"),
    (DataLoader(Numbers(), 2, num_workers=1, in_order=False), "in_order=False"), (DataLoader(Stream(), 2), "IterableDataset"),
])  # fmt: skip
def test_what_cannot_be_promised_is_said(loader, why):
    with pytest.warns(gangline.ResumeWarning, match=why):
        resumable(loader, Owner())


def test_another_number_of_processes_begins_the_epochs_data_anew():
    loops = {"fit_loop": {"state_dict": {"combined_loader": [1]}, "epoch_progress": 2}}
    with pytest.warns(gangline.ResumeWarning, match="another number of processes"):
        assert _resized(("loops",), [loops, None]) == {"fit_loop": {"state_dict": {}, "epoch_progress": 2}}
    assert _resized(("callbacks",), [{"a": 1}, {"a": 2}]) == {"a": 1}
    found = gangline._random.states()
    first, second = (states_of_rank(found, rank, 2) for rank in range(2))
    assert not torch.equal(first["cpu"], second["cpu"]) and first["python"] != second["python"]
    gangline.set_rng_state(first)
