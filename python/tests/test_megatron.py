"""Samples in Megatron-Core's order are those that its own GPTDataset gives."""

import collections
import types

import gangline
import numpy
import pytest
import torch
from gangline import MegatronOrder

SEED = 1234
LENGTH = 16
BATCH = 5
DOCUMENTS = 60


@pytest.fixture(scope="module")
def megatron():
    """Megatron-Core's own parts, whose import takes its time."""
    from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    return types.SimpleNamespace(**locals())


def written(megatron, prefix, documents):
    """A dataset that Megatron-Core wrote: documents from 0 to 40 tokens."""
    random = numpy.random.default_rng(documents)
    builder = megatron.IndexedDatasetBuilder(f"{prefix}.bin", dtype=numpy.uint16)
    for length in random.integers(0, 41, documents):
        builder.add_document(torch.tensor(random.integers(0, 50_000, length)), [int(length)])
    builder.finalize(f"{prefix}.idx")
    return prefix


@pytest.fixture(scope="module")
def prefix(megatron, tmp_path_factory):
    return written(megatron, tmp_path_factory.mktemp("megatron") / "corpus_text_document", DOCUMENTS)


@pytest.fixture(scope="module")
def prefixes(megatron, tmp_path_factory):
    """Three datasets of different sizes."""
    folder = tmp_path_factory.mktemp("blend")
    return [written(megatron, folder / name, documents) for name, documents in [("web", 40), ("code", 90), ("books", 20)]]


def theirs(megatron, prefix, samples, split, folder):
    """Megatron-Core's datasets for training, validation and test; none where the split leaves nothing."""
    return theirs_of(megatron, ([str(prefix)], None), samples, split, folder)


def theirs_of(megatron, blend, samples, split, folder):
    tokenizer = types.SimpleNamespace(unique_identifiers=collections.OrderedDict(name="none"), eod=0, pad=-1, vocab_size=50_000)
    config = megatron.GPTDatasetConfig(
        random_seed=SEED, sequence_length=LENGTH, blend=blend, split=split, path_to_cache=folder and str(folder),
        tokenizer=tokenizer, reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False, create_attention_mask=False,
    )  # fmt: skip
    return megatron.BlendedMegatronDatasetBuilder(megatron.GPTDataset, samples, lambda: True, config).build()


def ours(prefix, samples, split, part, **options):
    shuffle = MegatronOrder(samples, split, part)
    return gangline.Tokens(f"{prefix}.bin", sequence_length=LENGTH, global_batch=BATCH, seed=SEED, shuffle=shuffle, **options)


@pytest.mark.parametrize(
    ("samples", "split"),
    [
        # Less than a pass; one of which less and one of which more than four fifths are read in the last pass; many.
        ((20, 4, 1), "80,15,5"),
        ((70, 7, 5), "80,15,5"),
        ((115, 20, 9), "80, 15, 5"),
        ((400, 33, 0), "9,1"),
        ((95, 0, 0), "100"),
    ],
)
def test_samples_and_their_order_are_megatrons(megatron, prefix, samples, split, tmp_path):
    datasets = theirs(megatron, prefix, list(samples), split, tmp_path)
    compared = 0
    for part, count, dataset in zip(("train", "valid", "test"), samples, datasets, strict=True):
        if dataset is None or count == 0:
            continue
        tokens = ours(prefix, count, split, part)
        assert tokens.sizes[""][1] == len(dataset) >= count
        for step in range(count // BATCH):
            expected = [dataset[step * BATCH + row] for row in range(BATCH)]
            inputs, labels = tokens.next_batch()
            assert inputs.tolist() == [sample["tokens"].tolist() for sample in expected], (part, step)
            assert labels.tolist() == [sample["labels"].tolist() for sample in expected], (part, step)
            compared += BATCH
    assert compared >= 20


@pytest.mark.parametrize(
    ("samples", "split", "weights", "copies"),
    [
        ((60, 7, 5), "80,15,5", [0.5, 0.3, 0.2], 1),
        # Weights of any sum; more than a pass of one; as many as numpy adds in eight sums.
        ((200, 0, 0), "100", [7, 1, 2.5], 1),
        ((90, 0, 0), "100", [1 / number for number in range(1, 13)], 4),
        # By their samples: fewer than there are, more, and all.
        ((40, 5, 3), "50,25,25", None, 1),
        ((900, 0, 0), "9,1", None, 1),
        ((None, None, None), "9,1", None, 1),
    ],
)
def test_blends_are_megatrons(megatron, prefixes, samples, split, weights, copies):
    blend = [str(prefix) for prefix in prefixes] * copies
    # Without a folder of its own for the tables: with one it asks for a process group.
    datasets = theirs_of(megatron, (blend, weights), list(samples), split, None)
    sources = {f"{number}": f"{prefix}.bin" for number, prefix in enumerate(blend)}
    weighed = None if weights is None else dict(zip(sources, weights, strict=True))
    compared = 0
    for part, count, dataset in zip(("train", "valid", "test"), samples, datasets, strict=True):
        if dataset is None or count == 0:
            continue
        shuffle = MegatronOrder(count, split, part)
        tokens = gangline.Tokens(
            sources, sequence_length=LENGTH, global_batch=BATCH, seed=SEED, shuffle=shuffle, weights=weighed
        )
        for step, (inputs, labels) in enumerate(tokens):
            for row in range(BATCH):
                if step * BATCH + row < len(dataset):
                    sample = dataset[step * BATCH + row]
                    assert inputs[row].tolist() == sample["tokens"].tolist(), (part, step, row)
                    assert labels[row].tolist() == sample["labels"].tolist(), (part, step, row)
                    compared += 1
        assert step == (len(dataset) - 1) // BATCH, part
    assert compared >= 40


def test_a_run_goes_on_at_any_number_of_ranks(prefix):
    whole = list(ours(prefix, 60, "100", "train"))[:12]
    first = ours(prefix, 60, "100", "train")
    [first.next_batch() for _ in range(4)]
    ranks = [ours(prefix, 60, "100", "train", rank=rank, world_size=2) for rank in range(2)]
    for rank in ranks:
        rank.load_state_dict(first.state_dict())
    for expected in whole[4:]:
        parts = [rank.next_batch() for rank in ranks]
        assert torch.cat([part.inputs for part in parts]).tolist() == expected.inputs.tolist()
    elsewhere = ours(prefix, 60, "100", "train")
    elsewhere.skip(4)
    assert [elsewhere.next_batch().inputs.tolist() for _ in whole[4:]] == [batch.inputs.tolist() for batch in whole[4:]]
    with pytest.raises(gangline.Refused, match="don't come again"):
        elsewhere.skip(-1)
    other = ours(prefix, 61, "100", "train")
    with pytest.raises(gangline.Refused, match="another order"):
        other.load_state_dict(first.state_dict())


def test_what_has_no_such_order_is_refused(prefix, tmp_path):
    for order, problem in [
        (MegatronOrder(60, "100", "valid"), "leaves it nothing"),
        (MegatronOrder(60, "1,2,3,4"), "up to three numbers"),
        (MegatronOrder(60, "0,0,0"), "up to three numbers"),
        (MegatronOrder(60, "1..2"), "could not convert"),
        (MegatronOrder(60, "100", "held_out"), "it is one of 'train'"),
        (MegatronOrder(1 << 40, "100"), "no sample in Megatron's order, or more"),
        (MegatronOrder(60, "1,999"), "aren't among its 60"),
    ]:
        with pytest.raises(gangline.Refused, match=problem):
            gangline.Tokens(f"{prefix}.bin", sequence_length=LENGTH, global_batch=BATCH, shuffle=order)
    raw = tmp_path / "raw.bin"
    numpy.arange(1_000, dtype=numpy.uint16).tofile(raw)
    with pytest.raises(gangline.Refused, match="doesn't say where its documents end"):
        gangline.Tokens(raw, sequence_length=8, global_batch=2, source_dtype="uint16", shuffle=MegatronOrder(9, "100"))
    for weights, problem in [({"a": 1}, "one for each of 'a', 'b'"), ([(0, {"a": 1, "b": 1})], "for the whole run"), ({"a": 1, "b": 0}, "above 0")]:
        with pytest.raises(gangline.Refused, match=problem):
            both = {"a": f"{prefix}.bin", "b": f"{prefix}.bin"}
            gangline.Tokens(both, sequence_length=8, global_batch=2, shuffle=MegatronOrder(9, "100"), weights=weights)
    with pytest.raises(gangline.Refused, match="weights need the run's samples"):
        gangline.Tokens({"a": f"{prefix}.bin"}, sequence_length=8, global_batch=2, shuffle=MegatronOrder(None, "100"), weights={"a": 1})
    with pytest.raises(gangline.Refused, match="packs nothing"):
        ours(prefix, 60, "100", "train", pack="documents")
    with pytest.raises(gangline.Refused, match="more than 32 bits"):
        gangline.Tokens(f"{prefix}.bin", sequence_length=8, global_batch=2, seed=1 << 40, shuffle=MegatronOrder(9, "100"))
    lines = tmp_path / "rows.jsonl"
    lines.write_text('{"a": 1}\n' * 9)
    with pytest.raises(gangline.Refused, match="it is one of 'blocks'"):
        gangline.Rows(lines, global_batch=2, shuffle=MegatronOrder(9, "100"))
