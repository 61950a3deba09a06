"""Batches of tokens: the same at any number of ranks, resumed from checkpoints, as torch's and numpy's, never overwritten."""

import json
import os
import pathlib
import pickle
import re
import signal
import subprocess
import sys

import gangline
import gang
import numpy
import pytest
import torch
from torch.utils.data import DataLoader

OPTIONS = {"sequence_length": 8, "global_batch": 7, "seed": 3, "source_dtype": "uint16"}


@pytest.fixture
def path(tmp_path):
    """A file whose tokens are their own places."""
    path = tmp_path / "numbers.bin"
    numpy.arange(8 * 50 + 1, dtype=numpy.uint16).tofile(path)
    return path


def rows(batches):
    return [(batch.inputs.tolist(), batch.labels.tolist()) for batch in batches]


def of_gang(path, world_size, steps, state=None, **options):
    """The global batches of a gang, and the state behind them."""
    ranks = [gangline.Tokens(path, rank=rank, world_size=world_size, epochs=None, **OPTIONS, **options) for rank in range(world_size)]
    if state is not None:
        for rank in ranks:
            rank.load_state_dict(state)
    batches = []
    for _ in range(steps):
        parts = [rank.next_batch() for rank in ranks]
        batches.append(torch.cat([part.inputs for part in parts]).tolist())
    states = [rank.state_dict() for rank in ranks]
    assert all(one == states[0] for one in states)
    return batches, states[0]


def test_every_gang_has_the_same_batches_and_goes_on_with_anothers(path):
    oracle, _ = of_gang(path, 1, 12)
    state, found = None, []
    for world_size in (3, 2, 7, 1, 5, 4):
        batches, state = of_gang(path, world_size, 2, state)
        found += batches
    assert found == oracle
    assert len(json.dumps(state)) <= 200


def test_a_batch_is_inputs_and_the_tokens_behind_them(path):
    for dtype, expected in (("int64", torch.int64), ("int32", torch.int32)):
        inputs, labels = gangline.Tokens(path, dtype=dtype, **OPTIONS).next_batch()
        assert (inputs.dtype, inputs.shape, labels.shape) == (expected, (7, 8), (7, 8))
        assert torch.equal(inputs + 1, labels) and inputs.is_contiguous()
    stored = gangline.Tokens(path, dtype="stored", kind="numpy", **OPTIONS).next_batch()
    assert stored.inputs.dtype == numpy.uint16 and (stored.inputs + 1 == stored.labels).all()
    same = gangline.Tokens(path, labels="same", **OPTIONS).next_batch()
    assert same["input_ids"] is same["labels"]
    assert gangline.Tokens(path, labels=None, **OPTIONS).next_batch().tolist() == same["labels"].tolist()


def test_an_iteration_is_a_pass_and_the_next_goes_on_behind_it(path):
    tokens = gangline.Tokens(path, **OPTIONS)
    assert len(tokens) == 8
    first, numbers = list(tokens), []
    assert len(first) == 8 and tokens.sizes == {"": (401, 50)}
    for _ in range(2):
        numbers += [number for _ in tokens for _, _, number in tokens.samples]
    assert tokens.steps == 22 and len(numbers) == 14 * 7
    whole = gangline.Tokens(path, epochs=3, **OPTIONS)
    taken = [sample for _ in whole for sample in whole.samples]
    assert len(taken) == 22 * 7
    for epoch in range(3):
        assert sorted(number for _, at, number in taken if at == epoch) == list(range(50))


def test_memory_that_is_still_referred_to_is_not_used_again(path):
    tokens = gangline.Tokens(path, epochs=None, **OPTIONS)
    kept = [tokens.next_batch() for _ in range(30)]
    again = gangline.Tokens(path, epochs=None, **OPTIONS)
    assert rows(kept) == rows(again.next_batch() for _ in range(30))
    # A view keeps the memory as well as the whole does.
    view = again.next_batch().inputs[2:3].numpy()
    before = view.copy()
    addresses = {again.next_batch().inputs.data_ptr() for _ in range(50)}
    assert (view == before).all() and len(addresses) <= 4


def test_torchs_loader_takes_it_unchanged(path):
    tokens = gangline.Tokens(path, **OPTIONS)
    assert isinstance(tokens, torch.utils.data.IterableDataset)
    loader = DataLoader(tokens, batch_size=None)
    assert len(loader) == 8
    found = rows(loader)
    assert found == rows(gangline.Tokens(path, **OPTIONS))
    with pytest.raises(gangline.Refused, match="num_workers=0"):
        next(iter(DataLoader(gangline.Tokens(path, **OPTIONS), batch_size=None, num_workers=1, multiprocessing_context="fork")))
    with pytest.raises(gangline.Refused, match="open them there"):
        pickle.dumps(tokens)


def test_a_store_takes_its_position_along(path, tmp_path):
    tokens = gangline.Tokens(path, epochs=None, **OPTIONS)
    for _ in range(5):
        tokens.next_batch()
    with gangline.Store(tmp_path / "store") as store:
        store.save(5, {"w": torch.ones(3), "data": tokens}).durable()
        expected = rows(tokens.next_batch() for _ in range(3))
        again = gangline.Tokens(path, epochs=None, **OPTIONS)
        into = {"w": torch.zeros(3), "data": again}
        assert store.load(into=into)["data"] is again
        assert again.steps == 5 and rows(again.next_batch() for _ in range(3)) == expected
        # Without `into` it is plain values, which load_state_dict takes.
        third = gangline.Tokens(path, epochs=None, **OPTIONS)
        third.load_state_dict(store.load()["data"])
        assert rows([third.next_batch()]) == expected[:1]
        other = {"w": torch.zeros(3), "data": gangline.Tokens(path, epochs=None, **{**OPTIONS, "seed": 4})}
        with pytest.raises(gangline.Refused, match="of another order"):
            store.load(into=other)
        assert other["w"].sum() == 0, "nothing is changed"


def test_ranks_of_a_distributed_store_resume_at_another_number(path, tmp_path):
    first = gang.play("read_tokens", 3, tmp_path, path=str(path), steps=4)
    second = gang.play("read_tokens", 2, tmp_path, path=str(path), steps=4)
    oracle, _ = of_gang(path, 1, 8)
    found = [sum((ranks[step] for ranks in part), []) for part in (first, second) for step in range(4)]
    assert found == oracle


SCRIPT = """
import json, os, sys
import gangline
tokens = gangline.Tokens(sys.argv[1], epochs=None, sequence_length=8, global_batch=7, seed=3, source_dtype="uint16", kind="numpy")
with gangline.Store(sys.argv[2]) as store:
    if store.list():
        store.load(into={"data": tokens})
    while tokens.steps < 12:
        batch = tokens.next_batch()
        print(json.dumps([tokens.steps, batch.inputs.tolist()]), flush=True)
        if tokens.steps % 3 == 0:
            store.save(tokens.steps, {"data": tokens}).durable()
        if tokens.steps == int(sys.argv[3]):
            os.kill(os.getpid(), 9)
"""


def test_a_script_that_is_killed_trains_on_what_an_undisturbed_one_does(path, tmp_path):
    trained = {}
    for kill_at, expected in ((4, -signal.SIGKILL), (8, -signal.SIGKILL), (0, 0)):
        command = [sys.executable, "-c", SCRIPT, str(path), str(tmp_path / "store"), str(kill_at)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert ended.returncode == expected, ended.stderr
        trained.update(map(json.loads, ended.stdout.splitlines()))
    oracle, _ = of_gang(path, 1, 12)
    assert [trained[step] for step in range(1, 13)] == oracle


def test_batches_that_the_platform_says_are_bad_are_left_out(path, monkeypatch):
    oracle, _ = of_gang(path, 1, 12)
    tokens = gangline.Tokens(path, epochs=None, **OPTIONS)
    batches = [tokens.next_batch().inputs.tolist() for _ in range(3)]
    state = tokens.state_dict()
    monkeypatch.setenv("GANGLINE_SKIP_DATA_THROUGH", "5")
    resumed = gangline.Tokens(path, epochs=None, **OPTIONS)
    resumed.load_state_dict(state)
    batches += [resumed.next_batch().inputs.tolist() for _ in range(3)]
    assert batches == oracle[:3] + oracle[5:8]
    # A later resume, behind the bad steps, leaves out nothing more.
    again = gangline.Tokens(path, epochs=None, **OPTIONS)
    again.load_state_dict(resumed.state_dict())
    assert again.steps == 6 and again.next_batch().inputs.tolist() == oracle[8]
    monkeypatch.setenv("GANGLINE_SKIP_DATA_THROUGH", "soon")
    with pytest.raises(gangline.Refused, match="it is no step"):
        gangline.Tokens(path, **OPTIONS).next_batch()


def test_uneven_ranks_weigh_their_losses(path):
    ranks = [gangline.Tokens(path, rank=rank, world_size=3, **OPTIONS) for rank in range(3)]
    means = [rank.next_batch().inputs.double().mean() * rank.loss_weight for rank in ranks]
    whole = gangline.Tokens(path, **OPTIONS)
    assert abs(sum(means) / 3 - whole.next_batch().inputs.double().mean()) < 1e-9
    assert whole.loss_weight == 1


def test_mixtures_keep_their_shares_and_their_past(tmp_path):
    for name, first in (("a", 0), ("b", 10_000)):
        numpy.arange(first, first + 801, dtype=numpy.uint16).tofile(tmp_path / f"{name}.bin")
    sources = {name: tmp_path / f"{name}.bin" for name in "ab"}
    read = lambda weights: gangline.Tokens(sources, weights=weights, **OPTIONS)  # noqa: E731
    one, other = read({"a": 3, "b": 1}), read([(0, {"a": 3, "b": 1}), (6, {"b": 1})])
    found = [sorted(name for name, _, _ in (one.next_batch(), one.samples)[1]) for _ in range(8)]
    assert found.count(["a"] * 5 + ["b"] * 2) + found.count(["a"] * 6 + ["b"]) == 8
    again = read({"a": 3, "b": 1})
    for step in range(8):
        mine, theirs = again.next_batch().inputs, other.next_batch().inputs
        assert torch.equal(mine, theirs) == (step < 6)
    assert {name for name, _, _ in other.samples} == {"b"}
    with pytest.raises(TypeError, match="no length"):
        len(one)


def test_held_out_samples_are_never_trained_on(tmp_path):
    path = tmp_path / "long.npy"
    numpy.save(path, numpy.arange(8 * 1000 + 1, dtype=numpy.int32))
    parts = {}
    for part in ("training", "held_out"):
        tokens = gangline.Tokens(path, sequence_length=8, global_batch=1, held_out=4, part=part)
        parts[part] = {tokens.samples[0][2] for _ in tokens}
    assert not parts["training"] & parts["held_out"] and len(parts["training"] | parts["held_out"]) == 1000
    assert min(parts["held_out"]) == 192


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shuffle": "all"}, "shuffle='all'"),
        ({"dtype": "float32"}, "dtype='float32'"),
        ({"world_size": 8, "rank": 0}, "7 samples are fewer than 8 ranks"),
        ({"rank": 1}, "give both"),
        ({"source_dtype": None}, "doesn't say what its tokens are"),
        ({"source_dtype": "float32"}, "float32"),
        ({"sequence_length": 401}, "too few"),
        ({"sequence_length": 0}, "nonzero"),
        ({"held_out": 1}, "at least 2"),
        ({"part": "held_out"}, "say how much"),
        ({"weights": {"x": 1}}, "weights of 'x'"),
        ({"kind": "jax"}, "kind='jax'"),
        ({"pin_memory": True}, "no GPU"),
    ],
)
def test_options_that_make_no_sense_are_refused(path, options, message):
    if "pin_memory" in options and torch.cuda.is_available():
        pytest.skip("skipped: there is a GPU to copy to")
    with pytest.raises(gangline.Refused, match=message):
        gangline.Tokens(path, **{**OPTIONS, **options})


def test_files_that_are_missing_changed_or_damaged_are_told(path, tmp_path):
    with pytest.raises(gangline.NotFound, match="none.bin"):
        gangline.Tokens(tmp_path / "none.bin", **OPTIONS)
    tokens = gangline.Tokens(path, **OPTIONS)
    os.truncate(path, 100)
    with pytest.raises(gangline.Changed, match="it had 802 bytes"):
        tokens.next_batch()
    with pytest.raises(gangline.Refused, match="too few"):
        gangline.Tokens(path, **{**OPTIONS, "sequence_length": 64})
    (tmp_path / "cut.npy").write_bytes(b"\x93NUMPY\x01\x00")
    with pytest.raises(gangline.Corrupt, match="cut.npy"):
        gangline.Tokens(tmp_path / "cut.npy", **OPTIONS)


def test_states_of_others_are_refused(path):
    tokens = gangline.Tokens(path, **OPTIONS)
    for state, message in (({}, "no state"), ({**tokens.state_dict(), "data": "0" * 32}, "of other data")):
        with pytest.raises(gangline.Refused, match=message):
            tokens.load_state_dict(state)
    tokens.load_state_dict(tokens.state_dict())


GUIDE = pathlib.Path(__file__).parents[2] / "docs/guides/data.md"
# Ranks write to one pipe: the ends of their lines may come later than the lines.
LINE = re.compile(r"step (\d+) rank (\d+) samples \[([\d, ]*)\]")


def kill_children(pid):
    for of_thread in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        for child in of_thread.read_text().split():
            os.kill(int(child), signal.SIGKILL)


def train(script, folder, ranks, kill_after=None):
    """Runs the guide's script under torchrun; the samples that each rank printed, by step."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), script]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    steps, said = {}, []
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        for line in running.stdout:
            said.append(line)
            for step, rank, samples in LINE.findall(line):
                steps.setdefault(int(step), {})[int(rank)] = json.loads(f"[{samples}]")
            if kill_after in steps:
                kill_children(running.pid)
    assert (running.returncode == 0) == (kill_after is None), "".join(said)
    return {step: sum((of[rank] for rank in sorted(of)), []) for step, of in steps.items() if len(of) == ranks}


def test_the_guides_script_survives_a_kill_and_a_resize(tmp_path):
    [script] = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S)
    found = {}
    for name in ("disturbed", "undisturbed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(script)
        (tmp_path / name / "tokens").mkdir()
        numpy.save(tmp_path / name / "tokens/part.npy", numpy.arange(113, dtype=numpy.uint16))
    script = "train.py"
    for name, runs in (("undisturbed", [(1, None)]), ("disturbed", [(2, 12), (3, None)])):
        found[name] = {}
        for ranks, kill_after in runs:
            found[name].update(train(script, tmp_path / name, ranks, kill_after))
    assert sorted(found["undisturbed"]) == list(range(1, 21))
    assert found["disturbed"] == found["undisturbed"]


@pytest.fixture
def documents(tmp_path):
    """Megatron's pair with documents of 1 to 29 tokens, each token told from all others."""
    lengths = numpy.array([1 + number * 7 % 29 for number in range(200)], numpy.int32)
    tokens = numpy.concatenate([numpy.arange(length) + 1 + number * 100 for number, length in enumerate(lengths)])
    tokens.astype(numpy.int32).tofile(tmp_path / "pair.bin")
    pointers = numpy.concatenate([[0], numpy.cumsum(lengths[:-1])]).astype(numpy.int64) * 4
    header = b"MMIDIDX\0\0" + (1).to_bytes(8, "little") + b"\4" + len(lengths).to_bytes(8, "little") + (len(lengths) + 1).to_bytes(8, "little")
    index = header + lengths.tobytes() + pointers.tobytes() + numpy.arange(len(lengths) + 1, dtype=numpy.int64).tobytes()
    (tmp_path / "pair.idx").write_bytes(index)
    return tmp_path / "pair"


PACKED = {"sequence_length": 16, "global_batch": 6, "seed": 3, "pack": "documents"}


def test_packed_documents_are_kept_apart_by_boundaries_positions_and_masks(documents):
    tokens = gangline.Tokens(documents, **PACKED)
    batch = tokens.next_batch()
    assert batch.cu_seqlens.dtype == torch.int32 and batch.cu_seqlens[0] == 0 and batch.cu_seqlens[-1] == 6 * 16
    assert batch.max_seqlen == batch.cu_seqlens.diff().max()
    flat = {name: getattr(batch, name).view(-1).tolist() for name in ("inputs", "labels", "positions")}
    mask = torch.zeros(6 * 16, 6 * 16, dtype=torch.bool)
    for start, end in zip(batch.cu_seqlens.tolist(), batch.cu_seqlens[1:].tolist(), strict=False):
        assert flat["positions"][start:end] == list(range(end - start))
        if flat["labels"][start] == -100:
            assert set(flat["inputs"][start:end]) == {0} and set(flat["labels"][start:end]) == {-100}
        else:
            assert [label - 1 for label in flat["labels"][start:end]] == flat["inputs"][start:end]
        mask[start:end, start:end] = torch.ones(end - start, end - start, dtype=torch.bool).tril()
    for row in range(6):
        assert torch.equal(batch.mask()[row, 0], mask[row * 16 : row * 16 + 16, row * 16 : row * 16 + 16])
    of_numpy = gangline.Tokens(documents, kind="numpy", **PACKED).next_batch()
    assert (of_numpy.mask() == batch.mask().numpy()).all() and of_numpy.cu_seqlens.tolist() == batch.cu_seqlens.tolist()
    narrow = gangline.Tokens(documents, dtype="int32", **PACKED).next_batch()
    assert narrow.positions.dtype == torch.int32 and narrow.labels.tolist() == batch.labels.tolist()


def test_uneven_ranks_of_packed_documents_weigh_their_losses_by_their_labels(documents):
    whole = gangline.Tokens(documents, **PACKED)
    ranks = [gangline.Tokens(documents, rank=rank, world_size=4, **PACKED) for rank in range(4)]
    for _ in range(3):
        batches = [rank.next_batch() for rank in ranks]
        learned = [batch.labels[batch.labels >= 0].double() for batch in batches]
        weighted = sum(one.mean() * rank.loss_weight for one, rank in zip(learned, ranks, strict=True)) / 4
        labels = whole.next_batch().labels
        assert abs(weighted - labels[labels >= 0].double().mean()) < 1e-6
        assert sum(map(torch.Tensor.tolist, (batch.labels for batch in batches)), []) == labels.tolist()


def test_a_model_of_transformers_keeps_packed_documents_apart_by_their_positions(documents):
    import transformers

    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=20_100, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2
    )
    model = transformers.LlamaForCausalLM(config).eval()
    batch = gangline.Tokens(documents, labels="same", **PACKED).next_batch()
    packed = gangline.Tokens(documents, **PACKED).next_batch()
    assert torch.equal(batch["shift_labels"], packed.labels)
    with torch.no_grad():
        together = model(**batch)
        alone, boundaries = [], packed.cu_seqlens.tolist()
        for start, end in zip(boundaries, boundaries[1:], strict=False):
            alone.append(model(input_ids=packed.inputs.view(1, -1)[:, start:end]).logits[0])
    alone, labels = torch.cat(alone), packed.labels.view(-1)
    assert torch.allclose(together.logits.view(-1, 20_100), alone, atol=1e-5), "no document sees another"
    assert abs(together.loss - torch.nn.functional.cross_entropy(alone, labels)) < 1e-5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pack": "rows"}, "pack='rows'"),
        ({"labels": None}, "labels=None with pack"),
    ],
)
def test_packing_that_makes_no_sense_is_refused(documents, options, message):
    with pytest.raises(gangline.Refused, match=message):
        gangline.Tokens(documents, **{**PACKED, **options})


def test_data_without_documents_is_not_packed(path):
    with pytest.raises(gangline.Refused, match="doesn't say where its documents end"):
        gangline.Tokens(path, source_dtype="uint16", **PACKED)
