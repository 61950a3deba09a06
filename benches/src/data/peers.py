"""The peers of `bench data`. `peers.py WHAT FOLDER ...` prints what was asked for as a line of JSON.

convert TOKENS: writes the first part of the tokens in the peers' formats
warm TOKENS: samples/s of int64 batches from memory, by peer
cold TOKENS: samples/s of numpy's map of a file that isn't in memory
remote ENDPOINT: samples/s of an epoch from an S3 server that has the peers' formats, by peer
"""

import json
import os
import pathlib
import shutil
import sys
import tempfile
import time

import litdata
import numpy
import streaming
import torch
from litdata.streaming.cache import Cache
from litdata.streaming.item_loader import TokensLoader
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
from streaming import MDSWriter

sys.path += map(str, pathlib.Path(os.environ["PACKAGE_OF_TESTS"]).glob("lib/python3.*/site-packages"))
try:
    import gangline
except ModuleNotFoundError:
    gangline = None

BATCH, LENGTH = 32, 2048
# Samples in the peers' own formats: 256 MiB.
CONVERTED = 65_536


def rate(fill, seconds=1.0):
    """Samples a second."""
    fill()
    began, batches = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        fill()
        batches += 1
    return batches * BATCH / (time.perf_counter() - began)


def rate_of(loader, batches_max=None):
    """Samples a second of an iterator over batches, from its first one on."""
    began, samples = time.perf_counter(), 0
    for batch in loader:
        samples += len(batch["tokens"] if isinstance(batch, dict) else batch)
        if batches_max and samples >= batches_max * BATCH:
            break
    return samples / (time.perf_counter() - began)


def convert(folder, path):
    tokens = numpy.memmap(path, dtype=numpy.uint16, mode="r")
    rows = tokens[: CONVERTED * LENGTH].reshape(CONVERTED, LENGTH)
    folder.mkdir(parents=True)
    builder = IndexedDatasetBuilder(str(folder / "megatron.bin"), dtype=numpy.uint16)
    cache = Cache(str(folder / "litdata"), chunk_bytes="64MB", item_loader=TokensLoader(block_size=LENGTH))
    with MDSWriter(out=str(folder / "mds"), columns={"tokens": f"ndarray:uint16:{LENGTH}"}) as writer:
        for number, row in enumerate(rows):
            builder.add_item(torch.from_numpy(row.astype(numpy.int32)))
            builder.end_document()
            cache._add_item(number, torch.from_numpy(row.copy()))
            writer.write({"tokens": row})
    builder.finalize(str(folder / "megatron.idx"))
    cache.done()
    cache.merge()


def warm(folder, path):
    tokens = numpy.memmap(path, dtype=numpy.uint16, mode="r")
    samples = (len(tokens) - 1) // LENGTH
    order = numpy.random.default_rng(1).permutation(samples)
    at, found = 0, {}

    def rows():
        nonlocal at
        at = (at + BATCH) % (samples - BATCH)
        return order[at : at + BATCH]

    def take():
        return tokens[: samples * LENGTH].reshape(samples, LENGTH)[rows()].astype(numpy.int64)

    def each():
        starts = rows() * LENGTH
        inputs = numpy.stack([tokens[row : row + LENGTH].astype(numpy.int64) for row in starts])
        return inputs, numpy.stack([tokens[row + 1 : row + 1 + LENGTH].astype(numpy.int64) for row in starts])

    found["numpy memmap, a gather of rows, inputs only"] = rate(take)
    found["numpy memmap, a loop over samples, inputs and labels"] = rate(each)
    dataset = IndexedDataset(str(folder / "megatron"))
    gather = lambda: numpy.stack([dataset[int(row)].astype(numpy.int64) for row in rows() % CONVERTED])
    found["torch DataLoader without workers over a memmap, inputs only"] = rate(torch_loader(tokens, samples))
    found["Megatron-Core IndexedDataset, a loop over samples, inputs only"] = rate(gather)
    found["LitData StreamingDataLoader with a TokensLoader, shuffled"] = rate_of(lit_loader(str(folder / "litdata")), 1_000)
    found["MosaicML StreamingDataLoader, shuffled"] = rate_of(mds_loader(None, str(folder / "mds")), 300)
    if gangline:
        options = {"sequence_length": LENGTH, "global_batch": BATCH, "seed": 1, "epochs": None, "source_dtype": "uint16", "kind": "numpy"}
        for name, labels in (("inputs only", None), ("inputs and labels", "shifted")):
            made = gangline.Tokens(path, shuffle="global", labels=labels, **options)
            found[f"gangline.Tokens from Python, {name}"] = rate(made.next_batch)
    return found


def torch_loader(tokens, samples):
    class Samples(torch.utils.data.Dataset):
        def __len__(self):
            return samples

        def __getitem__(self, row):
            return torch.from_numpy(tokens[row * LENGTH : (row + 1) * LENGTH].astype(numpy.int64))

    batches = iter(torch.utils.data.DataLoader(Samples(), batch_size=BATCH, shuffle=True))
    return lambda: next(batches)


def lit_loader(place, **options):
    dataset = litdata.StreamingDataset(place, item_loader=TokensLoader(block_size=LENGTH), shuffle=True, seed=1, **options)
    return litdata.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=0)


def mds_loader(remote, local):
    dataset = streaming.StreamingDataset(remote=remote, local=local, batch_size=BATCH, shuffle=True, shuffle_seed=1)
    return streaming.StreamingDataLoader(dataset, batch_size=BATCH)


def cold(folder, path):
    tokens = numpy.memmap(path, dtype=numpy.uint16, mode="r")
    rows = iter(numpy.random.default_rng(1).permutation((len(tokens) - 1) // LENGTH))
    return rate(lambda: [tokens[row * LENGTH : (row + 1) * LENGTH].astype(numpy.int64) for row in (next(rows) for _ in range(BATCH))], 3.0)


def settle(folder):
    """Brings the machine into the state that data/mod.rs describes."""
    os.sync()
    with open(folder / "settle.bin", "wb") as file:
        for _ in range(192):
            file.write(b"\x01" * (8 << 20))
    os.remove(folder / "settle.bin")


def remote(folder, endpoint):
    keys = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
    os.environ.update(keys, AWS_DEFAULT_REGION="us-east-1", AWS_REGION="us-east-1", AWS_ENDPOINT_URL=endpoint, S3_ENDPOINT_URL=endpoint)
    found = {}
    for name, set_, loader in (
        ("LitData with a TokensLoader", "litdata", lambda place, empty: lit_loader(place, cache_dir=empty)),
        ("MosaicML Streaming", "mds", mds_loader),
    ):
        empty = tempfile.mkdtemp(dir=folder)
        settle(folder)
        began = time.perf_counter()
        samples = sum(len(batch["tokens"] if isinstance(batch, dict) else batch) for batch in loader(f"s3://bucket/{set_}", empty))
        found[f"{name}, 256 MiB, shuffled"] = samples / (time.perf_counter() - began)
        shutil.rmtree(empty)
    return found


what, folder, *rest = sys.argv[1:]
answer = {"convert": convert, "warm": warm, "cold": cold, "remote": remote}[what](pathlib.Path(folder), *rest)
print(json.dumps(answer))
