"""Saves with `stable_until`: the copy runs beside the training, the optimizer's step waits for it, and a state that
changed meanwhile is never visible."""

import copy
import os
import threading

import gangline
import numpy
import pytest
import torch

from same import assert_same


class Slow:
    """A native store whose copies wait until they are let go."""

    def __init__(self, native):
        self._native, self.may_copy = native, threading.Event()

    def save_unconfirmed(self, *given):
        assert self.may_copy.wait(60)
        return self._native.save_unconfirmed(*given)

    def __getattr__(self, name):
        return getattr(self._native, name)


def training(**options):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.BatchNorm1d(30), torch.nn.Linear(30, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, **options)
    train(model, optimizer)
    return model, optimizer


def train(model, optimizer):
    model(torch.randn(8, 40)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def state_of(model, optimizer):
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "noise": numpy.arange(7)}


@pytest.fixture
def slow(tmp_path):
    store = gangline.Store(tmp_path)
    store._native = Slow(store._native)
    yield store
    store._native.may_copy.set()
    store.close()


def test_the_optimizers_step_waits_for_the_copy_and_what_was_there_before_it_is_saved(slow):
    model, optimizer = training()
    state = state_of(model, optimizer)
    before = copy.deepcopy(state)
    save = slow.save(1, state, stable_until=optimizer)
    assert not save.staged() and not save.done()
    with pytest.raises(gangline.TimedOut, match="not copied after 0"):
        save.copied(0)
    # Batch normalisation's averages change in the forward pass, and numpy's arrays whenever somebody likes.
    state["noise"][:] = 0
    model(torch.randn(8, 40)).square().sum().backward()
    threading.Timer(0.2, slow._native.may_copy.set).start()
    optimizer.step()
    assert slow._native.may_copy.is_set() and save.staged()
    save.durable()
    assert_same(slow.load(), before)
    with pytest.raises(AssertionError):
        assert_same(slow.load(), copy.deepcopy(state))


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}, {"fused": True}])
def test_a_step_that_nobody_held_back_fails_the_save_by_name(slow, options):
    model, optimizer = training(**options)
    other = torch.optim.AdamW(model.parameters(), lr=0.01, **options)
    slow.save(1, state_of(model, optimizer)).durable()
    save = slow.save(2, state_of(model, optimizer), stable_until=optimizer)
    model(torch.randn(8, 40)).square().sum().backward()
    torch.optim.AdamW.step.__wrapped__(other)  # past the hooks, through which steps wait
    slow._native.may_copy.set()
    with pytest.raises(gangline.Changed, match=r"step 2: model\.0\.weight, model\.0\.bias, .* changed before it was copied"):
        save.durable()
    assert slow.latest().step == 1 and [one.step for one in slow.list()] == [1]
    slow.save(3, state_of(model, optimizer), stable_until=[optimizer, other]).durable()
    assert slow.latest().step == 3


@pytest.mark.parametrize("change", [lambda weight: weight.data.mul_(2), lambda weight: weight.data.mul_(1.001), lambda weight: weight.detach().numpy().__imul__(1.001)])
def test_a_change_that_torch_does_not_count_fails_the_save_too(slow, change):
    model, optimizer = training()
    save = slow.save(1, state_of(model, optimizer), stable_until=optimizer)
    change(model[2].weight)
    slow._native.may_copy.set()
    with pytest.raises(gangline.Changed, match=r"step 1: model\.2\.weight changed before"):
        save.durable()
    assert slow.latest() is None


def test_steps_of_all_optimizers_wait(slow):
    model, optimizer = training()
    before = copy.deepcopy(model.state_dict())
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    save = slow.save(1, state_of(model, optimizer), stable_until=optimizer)
    threading.Timer(0.2, slow._native.may_copy.set).start()
    train(model, other)
    assert save.staged() and save.durable().step == 1
    assert_same(slow.load()["model"], before)


def test_a_failure_that_nobody_asked_about_is_raised_by_the_next_save(slow):
    model, optimizer = training()
    save = slow.save(1, state_of(model, optimizer), stable_until=optimizer)
    with torch.no_grad():
        model[0].weight.mul_(2)
    slow._native.may_copy.set()
    while not save.done():
        os.sched_yield()
    with pytest.raises(gangline.Changed, match="model.0.weight"):
        slow.save(2, state_of(model, optimizer), stable_until=optimizer)
    slow.save(3, state_of(model, optimizer), stable_until=optimizer).durable()
    assert [one.step for one in slow.list()] == [3]


def test_closing_waits_for_the_copy_and_makes_it_durable(tmp_path):
    model, optimizer = training()
    with gangline.Store(tmp_path) as store:
        store.save(1, state_of(model, optimizer), stable_until=optimizer)
        store.save(2, state_of(model, optimizer), stable_until=optimizer)
    train(model, optimizer)  # of a store that is closed the optimizer knows nothing any more
    with gangline.Reader(tmp_path) as reader:
        assert [one.step for one in reader.list()] == [1, 2]
        assert all(reader.verify(step).is_good for step in (1, 2))


def test_a_copy_that_fails_fails_where_it_is_asked_for_and_not_in_the_optimizers_step(tmp_path):
    model, optimizer = training()
    store = gangline.Store(tmp_path, memory_max=4096)
    save = store.save(1, state_of(model, optimizer), stable_until=optimizer)
    train(model, optimizer)
    for ask in (save.copied, save.durable):
        with pytest.raises(gangline.Refused, match="memory_max"):
            ask()
    store.close()
    with gangline.Reader(tmp_path) as reader:
        assert reader.latest() is None


def test_what_has_no_steps_to_wait_for_is_refused(tmp_path):
    model, _ = training()
    with gangline.Store(tmp_path) as store, pytest.raises(gangline.Refused, match="torch.optim.Optimizer"):
        store.save(1, model.state_dict(), stable_until="update")


def test_the_next_save_reuses_the_buffer_of_tensors_that_are_copied_at_once(slow):
    model, optimizer = training()
    slow._native.may_copy.set()
    for step in (1, 2, 3):
        noise = numpy.full(100_000, step)
        save = slow.save(step, {"model": model.state_dict(), "noise": noise, "empty": noise[:0]}, stable_until=optimizer)
        noise[:] = -1  # it was copied
        save.durable()
    assert len(slow._buffers._free) == 1
    for step in (2, 3):
        loaded = slow.load(step)
        assert (loaded["noise"] == step).all() and loaded["empty"].size == 0
