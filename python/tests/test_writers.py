"""Tokens and records are those that the formats' own writers were given, of MosaicML Streaming, LitData and WebDataset."""

import importlib.util
import json
import pathlib
import sys
import types

import gangline
import numpy
import pytest
import torch

LENGTH = 8


@pytest.fixture
def documents():
    random = numpy.random.default_rng(11)
    return [random.integers(0, 60_000, length).astype(numpy.uint16) for length in random.integers(1, 90, 40)]


def read(folder, tmp_path):
    """All tokens of a dataset in their order, but for those behind the last whole sample."""
    tokens = gangline.Tokens(folder, sequence_length=LENGTH, global_batch=1, shuffle="none", cache=tmp_path / "cache", kind="numpy")
    return numpy.concatenate([inputs[0] for inputs, _ in tokens])


def are_read(folder, written, tmp_path):
    found = read(folder, tmp_path)
    assert len(found) == (len(written) - 1) // LENGTH * LENGTH
    assert found.tolist() == written[: len(found)].tolist()


@pytest.fixture(scope="module")
def mds_writer():
    """MosaicML Streaming's writer alone: what the package imports at its top isn't needed for it."""
    place = pathlib.Path(importlib.util.find_spec("streaming").submodule_search_locations[0])
    for name, folder in (("streaming", place), ("streaming.base", place / "base")):
        module = types.ModuleType(name)
        module.__path__ = [str(folder)]
        sys.modules[name] = module
    from streaming.base.format.mds.writer import MDSWriter

    return MDSWriter


@pytest.mark.parametrize("compression", [None, "zstd:7", "gz", "br:11", "bz2", "snappy"])
def test_shards_of_mosaicml_streaming(mds_writer, documents, compression, tmp_path):
    rows = numpy.concatenate(documents)
    rows = rows[: len(rows) // 16 * 16].reshape(-1, 16)
    columns = {"note": "str", "tokens": "ndarray:uint16:16"}
    with mds_writer(out=str(tmp_path / "mds"), columns=columns, compression=compression, size_limit=700) as writer:
        for number, row in enumerate(rows):
            writer.write({"note": "x" * (number % 5), "tokens": row})
    assert len(list((tmp_path / "mds").glob("shard.*"))) > 3
    are_read(tmp_path / "mds", rows.reshape(-1), tmp_path)


@pytest.mark.parametrize("compression", [None, "zstd", "zstd:9"])
def test_chunks_of_litdata(documents, compression, tmp_path):
    from litdata.streaming.cache import Cache
    from litdata.streaming.item_loader import TokensLoader

    level = "chunk" if compression else None
    loader = TokensLoader(block_size=4)
    cache = Cache(str(tmp_path / "chunks"), chunk_size=300, compression=compression, compression_level=level, item_loader=loader)
    for number, document in enumerate(documents):
        cache._add_item(number, torch.tensor(document))
    cache.done()
    cache.merge()
    assert len(list((tmp_path / "chunks").glob("chunk-*.bin"))) > 3
    are_read(tmp_path / "chunks", numpy.concatenate(documents), tmp_path)


def test_shards_of_webdataset(tmp_path):
    import webdataset

    (tmp_path / "shards").mkdir()
    samples = [{"__key__": f"part/{number:04}", "json": {"number": number}, "txt": "é" * number} for number in range(60)]
    with webdataset.ShardWriter(str(tmp_path / "shards/%03d.tar"), maxcount=25, verbose=0) as writer:
        for sample in samples:
            writer.write(sample)
    rows = gangline.Rows(tmp_path / "shards", global_batch=4, shuffle="none")
    found = [sample for batch in rows for sample in batch]
    made = [{**sample, "json": json.loads(sample["json"]), "txt": sample["txt"].decode()} for sample in found]
    assert made == samples
