"""Records that aren't tokens: what real writers wrote, the same at any number of ranks, resumed from checkpoints, and what is damaged."""

import gzip
import io
import json
import os
import tarfile

import gangline
import pytest
import torch

OPTIONS = {"global_batch": 7, "seed": 3}
COUNT = 50


def record(number):
    return {"number": number, "text": f"record {number}" * (number % 5), "parts": [number] * (number % 3)}


@pytest.fixture
def path(tmp_path):
    """Lines, some of them of spaces, the last without an end."""
    path = tmp_path / "records.jsonl"
    lines = [json.dumps(record(number)) + "\n" * (1 + number % 2) for number in range(COUNT)]
    path.write_text("".join(lines).replace("\n\n", "\n  \n").rstrip())
    return path


def numbers(rows):
    return [one["number"] for one in rows]


def of_gang(path, world_size, steps, state=None):
    ranks = [gangline.Rows(path, rank=rank, world_size=world_size, epochs=None, **OPTIONS) for rank in range(world_size)]
    for rank in ranks if state is not None else ():
        rank.load_state_dict(state)
    batches = [sum((numbers(rank.next_batch()) for rank in ranks), []) for _ in range(steps)]
    assert all(rank.state_dict() == ranks[0].state_dict() for rank in ranks)
    return batches, ranks[0].state_dict()


def test_every_gang_has_the_same_records_and_goes_on_with_anothers(path):
    oracle, _ = of_gang(path, 1, 12)
    state, found = None, []
    for world_size in (3, 2, 7, 1, 5, 4):
        batches, state = of_gang(path, world_size, 2, state)
        found += batches
    assert found == oracle and len(json.dumps(state)) <= 200
    rows = gangline.Rows(path, **OPTIONS)
    assert len(rows) == 8
    assert sorted(sum((numbers(batch) for batch in rows), [])[:COUNT]) == list(range(COUNT))


def test_records_are_what_was_written_and_are_transformed_and_collated(path):
    rows = gangline.Rows(path, transform=lambda one: one["number"] * 2, collate=torch.tensor, **OPTIONS)
    batch = rows.next_batch()
    assert batch.tolist() == [number * 2 for _, _, number in rows.samples]
    plain = gangline.Rows(path, **OPTIONS)
    assert plain.next_batch() == [record(number) for _, _, number in plain.samples]
    assert plain.sizes == {"": COUNT} and plain.loss_weight == 1


def test_a_batch_that_fails_is_tried_again(path):
    calls = []

    def transform(one):
        calls.append(one)
        if len(calls) == 3:
            raise KeyError("once")
        return one

    rows, whole = gangline.Rows(path, transform=transform, **OPTIONS), gangline.Rows(path, **OPTIONS)
    with pytest.raises(KeyError, match="once"):
        rows.next_batch()
    assert rows.steps == 0 and rows.next_batch() == whole.next_batch()


def test_a_store_and_torchs_loader_take_them(path, tmp_path):
    rows = gangline.Rows(path, epochs=None, **OPTIONS)
    found = [numbers(rows.next_batch()) for _ in range(3)]
    with gangline.Store(tmp_path / "store") as store:
        store.save(3, {"data": rows}).durable()
        again = gangline.Rows(path, epochs=None, **OPTIONS)
        store.load(into={"data": again})
    found += [numbers(again.next_batch()) for _ in range(3)]
    assert found == of_gang(path, 1, 6)[0]
    loader = torch.utils.data.DataLoader(gangline.Rows(path, **OPTIONS), batch_size=None)
    assert list(map(numbers, loader)) == list(map(numbers, gangline.Rows(path, **OPTIONS)))


def test_compressed_lines_are_the_same_and_are_unpacked_once(path, tmp_path):
    packed, cache = tmp_path / "packed.jsonl.gz", tmp_path / "cache"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    expected = list(map(numbers, gangline.Rows(path, **OPTIONS)))
    assert list(map(numbers, gangline.Rows(packed, **OPTIONS))) == expected
    first = gangline.Rows(packed, unpacked=cache, **OPTIONS)
    kept = lambda: [one for one in cache.iterdir() if one.is_file()]  # noqa: E731
    [unpacked] = kept()
    written = unpacked.stat().st_mtime_ns
    again = gangline.Rows(packed, unpacked=cache, **OPTIONS)
    assert list(map(numbers, first)) == list(map(numbers, again)) == expected and unpacked.stat().st_mtime_ns == written
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(gangline.Corrupt, match="packed.jsonl.gz"):
        gangline.Rows(packed, unpacked=cache, **OPTIONS)
    assert kept() == [unpacked]


def test_samples_of_a_tar_are_the_files_of_a_key(tmp_path):
    with tarfile.open(tmp_path / "shard.tar", "w") as tar:
        for number in range(COUNT):
            for end, text in (("json", json.dumps(record(number))), ("seg.txt", f"{number}" * number)):
                member = tarfile.TarInfo(f"part/{number:03}.{end}")
                member.size = len(text)
                tar.addfile(member, io.BytesIO(text.encode()))
    rows = gangline.Rows(tmp_path / "shard.tar", **OPTIONS)
    batch = rows.next_batch()
    for sample, (_, _, number) in zip(batch, rows.samples, strict=True):
        assert sample == {"__key__": f"part/{number:03}", "json": json.dumps(record(number)).encode(), "seg.txt": (f"{number}" * number).encode()}
    os.truncate(tmp_path / "shard.tar", 5000)
    with pytest.raises(gangline.Corrupt, match="shard.tar"):
        gangline.Rows(tmp_path / "shard.tar", **OPTIONS)


def test_real_arrow_and_parquet_files_are_read(tmp_path):
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.Table.from_pylist(list(map(record, range(COUNT))))
    with pyarrow.ipc.new_stream(tmp_path / "stream.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=9)
    with pyarrow.ipc.new_file(tmp_path / "file.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=9)
    pyarrow.parquet.write_table(table, tmp_path / "table.parquet", row_group_size=9)
    expected = [list(map(record, batch)) for batch in of_gang_numbers(tmp_path)]
    for name in ("stream.arrow", "file.arrow", "table.parquet"):
        assert list(gangline.Rows(tmp_path / name, **OPTIONS)) == expected
        (tmp_path / f"cut-{name}").write_bytes((tmp_path / name).read_bytes()[:900])
        with pytest.raises(gangline.Corrupt, match=f"cut-{name}"):
            list(gangline.Rows(tmp_path / f"cut-{name}", **OPTIONS))


def of_gang_numbers(folder):
    """The order of as many records, which doesn't depend on what they are."""
    (folder / "plain.jsonl").write_text("".join(f'{{"number": {number}}}\n' for number in range(COUNT)))
    return list(map(numbers, gangline.Rows(folder / "plain.jsonl", **OPTIONS)))


def test_what_datasets_saved_is_read(tmp_path):
    import datasets

    saved = datasets.Dataset.from_list(list(map(record, range(COUNT))))
    saved.save_to_disk(tmp_path / "saved", num_shards=3)
    assert list(gangline.Rows(tmp_path / "saved", **OPTIONS)) == [list(map(record, batch)) for batch in of_gang_numbers(tmp_path)]
    (tmp_path / "saved/state.json").write_text('{"_data_files": [{"filename": "../plain.jsonl"}]}')
    with pytest.raises(gangline.Corrupt, match="outside of the folder"):
        gangline.Rows(tmp_path / "saved", **OPTIONS)


def test_mixtures_of_records_keep_their_shares(path, tmp_path):
    (tmp_path / "other.jsonl").write_text('{"number": -1}\n' * 9)
    rows = gangline.Rows({"many": path, "few": tmp_path / "other.jsonl"}, weights={"many": 6, "few": 1}, **OPTIONS)
    for _ in range(5):
        assert sum(number == -1 for number in numbers(rows.next_batch())) == 1


def test_lines_that_are_no_json_and_files_that_change_are_told_with_the_place(path, tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"a": 1}\n{"a": \n')
    with pytest.raises(gangline.Corrupt, match="bad.jsonl at byte 9: line 2: it is no JSON"):
        list(gangline.Rows(tmp_path / "bad.jsonl", global_batch=1))
    rows = gangline.Rows(path, **OPTIONS)
    os.truncate(path, 100)
    with pytest.raises(gangline.Changed, match="records.jsonl: it had"):
        list(rows)
    for name, error, message in (
        ("none.jsonl", gangline.NotFound, "no such file"), (".", gangline.Refused, "several kinds"), ("empty.jsonl", gangline.Refused, "has 0 samples"),
    ):  # fmt: skip
        (tmp_path / "empty.jsonl").write_text("\n")
        (tmp_path / "a.tar").write_bytes(b"")
        with pytest.raises(error, match=message):
            gangline.Rows(tmp_path / name, **OPTIONS)
