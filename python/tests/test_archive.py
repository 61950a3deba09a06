"""Checkpoints go into an archive and come back, from Python."""

import pathlib

import gangline
import pytest
import torch
from same import assert_same


def save(path, *steps):
    with gangline.Store(path, keep=None) as store:
        for step in steps:
            torch.manual_seed(step)
            store.save(step, {"frozen": torch.ones(100_000), "w": torch.randn(100_000), "step": step}).durable()
    return gangline.Reader(path)


def test_what_was_pushed_comes_back_bit_for_bit_into_another_folder(tmp_path):
    archive, store = str(tmp_path / "archive"), save(tmp_path / "store", 1, 2)
    first, second = store.push(archive, 1), store.push(archive)
    assert (first.step, second.step, first.was_archived) == (1, 2, False)
    assert 0 < second.put < first.bytes / 2, "the frozen half is there already"
    assert store.push(archive, 2).was_archived
    with gangline.Store(tmp_path / "elsewhere") as elsewhere:
        pulled = elsewhere.pull(archive)
        assert (pulled.step, pulled.was_there) == (2, False) and elsewhere.pull(archive).was_there
        assert_same(elsewhere.load(), store.load())
        assert elsewhere.latest().content_hash == store.latest().content_hash
        assert elsewhere.pull(archive, 1, bytes_per_second_max=10**9).step == 1


def test_an_archive_refuses_what_makes_no_sense_and_names_what_is_damaged(tmp_path):
    archive, store = tmp_path / "archive", save(tmp_path / "store", 1)
    with pytest.raises(gangline.NotFound, match="in the archive"):
        store.pull(str(archive))
    with pytest.raises(gangline.NotFound, match="step 7"):
        store.push(str(archive), 7)
    with pytest.raises(gangline.Refused, match="bucket"):
        store.push("s3://", 1)
    with pytest.raises(gangline.Refused, match="no bytes a second"):
        store.push(str(archive), 1, bytes_per_second_max=0)
    with gangline.Store(tmp_path / "empty") as empty, pytest.raises(gangline.NotFound, match="there is none"):
        empty.push(str(archive))
    store.push(str(archive))
    with gangline.Store(tmp_path / "other") as other:
        other.save(1, {"another": 1}).durable()
        with pytest.raises(gangline.Refused, match="other content"):
            other.pull(str(archive))
    [pack] = pathlib.Path(archive, "packs").iterdir()
    pack.write_bytes(pack.read_bytes()[:-1])
    with gangline.Store(tmp_path / "elsewhere") as elsewhere, pytest.raises(gangline.Corrupt, match=pack.name):
        elsewhere.pull(str(archive))


def test_a_bucket_that_nobody_answers_for_is_told_as_such(tmp_path, monkeypatch):
    for name, value in {"ENDPOINT": "http://127.0.0.1:9", "ALLOW_HTTP": "true", "REGION": "x", "ACCESS_KEY_ID": "x"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    with pytest.raises(gangline.Unreachable, match="in the archive, tried"):
        save(tmp_path, 1).push("s3://bucket/prefix", 1)


def test_a_store_with_an_archive_pushes_by_itself_and_an_archive_out_of_reach_is_a_warning(tmp_path, recwarn):
    archive = tmp_path / "archive"
    with gangline.Store(tmp_path / "store", archive=str(archive)) as store:
        store.save(1, {"w": torch.ones(3)}).durable()
        assert store.wait_archived().step == 1 and store.wait_archived() is None
        store.save(2, {"w": torch.zeros(3)})
    with gangline.Store(tmp_path / "back") as back:
        assert back.pull(str(archive)).step == 2
    assert not recwarn.list
    (tmp_path / "file").write_text("no folder")
    store = gangline.Store(tmp_path / "store", archive=str(tmp_path / "file"))
    with pytest.raises(gangline.Unreachable, match="Not a directory"):
        store.wait_archived()
    store.save(3, {"w": torch.ones(3)}).durable()
    with pytest.warns(gangline.ArchiveFailedWarning, match="isn't in the archive"):
        store.close()
    with pytest.raises(gangline.Refused, match="ftp"):
        gangline.Store(tmp_path / "store", archive="ftp://somewhere")


def test_an_archive_is_encrypted_by_the_key_that_its_first_push_is_given(tmp_path, monkeypatch):
    key, archive = tmp_path / "key", str(tmp_path / "archive")
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    store = save(tmp_path / "store", 1)
    store.push(archive, 1, key_file=key)
    assert all(b"frozen" not in path.read_bytes() for path in pathlib.Path(archive).rglob("*") if path.is_file())
    with gangline.Store(tmp_path / "back") as back:
        with pytest.raises(gangline.Refused, match="key"):
            back.pull(archive)
        monkeypatch.setenv("GANGLINE_ARCHIVE_KEY_FILE", str(key))
        assert back.pull(archive).step == 1


def test_a_store_of_an_archives_address_goes_on_wherever_it_is_opened(tmp_path, monkeypatch):
    address = (tmp_path / "archive").as_uri()
    monkeypatch.setenv("GANGLINE_CACHE_DIR", str(tmp_path / "one"))
    with gangline.Store(address, keep=1) as store:
        for step in (1, 2):
            store.save(step, {"w": torch.full((5,), step), "step": step}).durable()
            assert store.wait_archived().step == step
        assert [listed.step for listed in store.list()] == [1, 2], "one is here and both are there"
        assert store.load(1)["step"] == 1 and store.verify(1).is_good
    monkeypatch.setenv("GANGLINE_CACHE_DIR", str(tmp_path / "another"))
    with gangline.Reader(address) as reader:
        assert [(listed.step, listed.info.step) for listed in reader.list()] == [(1, 1), (2, 2)]
        assert reader.latest().step == 2
        assert_same(reader.load(), {"w": torch.full((5,), 2), "step": 2})
        with pytest.raises(gangline.NotFound, match="step 7"):
            reader.load(7)
    with gangline.Store(address) as store:
        store.save(3, {"step": 3})
    monkeypatch.setenv("GANGLINE_CACHE_DIR", str(tmp_path / "one"))
    assert gangline.Store(address).load() == {"step": 3}, "the newest is on another machine"


def test_an_address_that_cannot_be_asked_leaves_what_is_here_and_is_refused_where_it_makes_no_sense(tmp_path, monkeypatch):
    monkeypatch.setenv("GANGLINE_CACHE_DIR", str(tmp_path / "cache"))
    archive = tmp_path / "archive"
    with gangline.Store(archive.as_uri()) as store:
        store.save(1, {"step": 1})
    archive.rename(tmp_path / "moved")
    archive.write_text("no folder")
    with pytest.warns(gangline.ArchiveFailedWarning, match="newest checkpoint of this machine"):
        assert gangline.Reader(archive.as_uri()).load() == {"step": 1}
    monkeypatch.setenv("GANGLINE_CACHE_DIR", str(tmp_path / "empty"))
    with pytest.raises(gangline.Unreachable):
        gangline.Reader(archive.as_uri()).load()
    with pytest.raises(gangline.Refused, match="it is an archive itself"):
        gangline.Store("s3://bucket/run", archive="s3://bucket/other")
    with pytest.raises(gangline.Refused, match="all of them see"):
        gangline.DistributedStore("s3://bucket/run")
