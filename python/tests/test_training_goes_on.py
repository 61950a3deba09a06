"""Training goes on as if it had never stopped, whatever way its state has taken: the next losses are the same to the last bit."""

import gangline
import gangline.torch
import pytest
import torch
import torch.distributed.checkpoint as dcp

LOSSES = 20


class Training:
    """A small network with Adam, whose moments decide each step."""

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)

    def losses(self, count, first=0):
        losses = []
        for step in range(first, first + count):
            inputs = torch.rand(32, 8, generator=torch.Generator().manual_seed(step))
            loss = (self.model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return losses

    def state(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def take(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def store(folder, state):
    with gangline.Store(folder / "store") as store:
        store.save(1, state).durable()
        return store.load(1)


def store_into(folder, state):
    other = Training(seed=1)
    other.losses(1)  # Adam has no moments before.
    with gangline.Store(folder / "store") as store:
        store.save(1, state).durable()
        return store.load(1, into=other.state())


def imported_file(folder, state):
    torch.save(state, folder / "state.pt")
    with gangline.Store(folder / "store") as store:
        gangline.torch.import_checkpoint(folder / "state.pt", store, 1)
        return store.load(1)


def imported_folder(folder, state):
    dcp.save(state, checkpoint_id=folder / "dcp", no_dist=True)
    with gangline.Store(folder / "store") as store:
        gangline.torch.import_checkpoint(folder / "dcp", store, 1)
        return store.load(1)


def plugged_in(folder, state):
    dcp.save(state, storage_writer=gangline.torch.StorageWriter(folder / "store", step=1), no_dist=True)
    return gangline.Reader(folder / "store").load(1)


def plugged_in_into(folder, state):
    dcp.save(state, storage_writer=gangline.torch.StorageWriter(folder / "store", step=1), no_dist=True)
    other = Training(seed=1)
    other.losses(1)
    return gangline.Reader(folder / "store").load(1, into=other.state())


def plugged_out(folder, state):
    other = Training(seed=1)
    other.losses(1)
    loaded = other.state()
    with gangline.Store(folder / "store") as store:
        store.save(1, state).durable()
    dcp.load(loaded, storage_reader=gangline.torch.StorageReader(folder / "store"), no_dist=True)
    return loaded


@pytest.mark.parametrize("path", [store, store_into, imported_file, imported_folder, plugged_in, plugged_in_into, plugged_out])
def test_the_next_losses_are_those_of_a_training_that_never_stopped(tmp_path, path):
    training = Training()
    training.losses(10)
    state = path(tmp_path, training.state())
    assert list(state["optimizer"]["state"]) == [0, 1, 2, 3], "as integers"
    expected = training.losses(LOSSES, first=10)
    again = Training(seed=2)
    again.take(state)
    assert again.losses(LOSSES, first=10) == expected


def test_keys_that_were_always_text_stay_text(tmp_path):
    state = {"a": {"0": torch.ones(1)}, "o": {"state": {"w": {"x": torch.ones(1)}}, "param_groups": [{"params": ["w"], "lr": 1.0}]}}
    dcp.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    with gangline.Store(tmp_path / "store") as store:
        gangline.torch.import_checkpoint(tmp_path / "dcp", store, 1)
        loaded = store.load(1)
    assert list(loaded["a"]) == ["0"] and list(loaded["o"]["state"]) == ["w"]
