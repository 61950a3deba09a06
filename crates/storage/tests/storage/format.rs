//! Format version 1: as it was first written it is still read, and as it is written now it stays byte for byte.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gangline_storage::archive::{Archive, Options as ArchiveOptions};
use gangline_storage::{Error, Flaw, Options, Step, Timestamp};

use crate::{files, offered, open, save};

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/version-1")
}

/// The same, with headers padded so that the data starts at a page: the same version, for readers don't mind.
fn padded() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/version-1-padded")
}

/// The same with a lineage, which older programs pass over, and the file that names the current branch.
fn with_branches() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/version-1-branches")
}

/// If this fails, a program that wrote version 1 can't be resumed from: don't change the fixture, change the reader.
#[test]
fn a_checkpoint_of_version_1_is_read() {
    for fixture in [fixture(), padded(), with_branches()] {
        assert_eq!(offered(&fixture), Some(7));
        let info = open(&fixture, Options::reader()).latest().unwrap().checkpoint.unwrap();
        assert_eq!(info.saved_at.is_some(), fixture == with_branches());
        assert_eq!((info.writer, info.world_size, info.metadata["seed"].as_str()), (3, 1, "7"));
        assert_eq!(info.content_hash.to_string(), load_version_1_hash());
    }
}

/// If this fails on purpose (a new version), add a fixture of it beside this one.
#[test]
fn version_1_is_written_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let clock = Arc::new(|| Timestamp::from_unix_nanos(1_700_000_000_000_000_000));
    let options = Options { run: Some("job-1".to_owned()), clock, ..Options::writer(0, 1, 3) };
    save(&open(folder.path(), options), 7).unwrap();
    let is_the_writers = |file: &PathBuf| file.to_string_lossy().contains("/writer.");
    let written: Vec<PathBuf> = files(folder.path()).into_iter().filter(|file| !is_the_writers(file)).collect();
    assert_eq!(written.len(), 3);
    for file in written {
        let name = file.strip_prefix(folder.path()).unwrap();
        let bytes = std::fs::read(&file).unwrap();
        assert!(
            bytes == std::fs::read(with_branches().join(name)).unwrap(),
            "{} differs: {}",
            name.display(),
            String::from_utf8_lossy(&bytes)
        );
    }
}

/// Rewrites the manifest's text and seals it again, as another program would.
fn with_manifest(change: impl Fn(&str) -> String) -> Result<(), Error> {
    let folder = tempfile::tempdir().unwrap();
    save(&open(folder.path(), Options::default()), 7).unwrap();
    let path = folder.path().join("step-0000000007/manifest.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let body = change(text.split_once(",\"checksum\"").unwrap().0);
    let sealed = format!("{body},\"checksum\":\"{}\"}}\n", gangline_storage::Digest::of(body.as_bytes()));
    std::fs::write(&path, sealed).unwrap();
    open(folder.path(), Options::reader()).load(Step(7)).map(drop)
}

#[test]
fn members_of_a_newer_program_are_ignored_and_newer_versions_refused_by_name() {
    with_manifest(str::to_owned).unwrap();
    with_manifest(|text| format!("{text},\"codec\":\"zstd\"")).unwrap();
    let newer = with_manifest(|text| text.replace("\"version\":1", "\"version\":4"));
    assert!(matches!(newer, Err(Error::Corrupt { flaw: Flaw::Version { found: 4, known: 3 }, .. })), "{newer:?}");
}

/// A checkpoint of two ranks whose manifest says, with a right checksum, that both files are rank 0's.
fn with_two_files_of_a_rank(version: u32) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let parts = [([0, 0], [4, 6]), ([4, 0], [3, 6])];
    for saved in crate::sharded::save_parts(folder.path(), &parts, 7) {
        saved.unwrap();
    }
    let path = folder.path().join("step-0000000007/manifest.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let (body, _) = text.rsplit_once(",\"checksum\":").unwrap();
    let body = body.replace("\"version\":2", &format!("\"version\":{version}"));
    let body = body.replace("\"world_size\":2", "\"world_size\":1").replace("{\"rank\":1", "{\"rank\":0");
    let sealed = format!("{body},\"checksum\":\"{}\"}}\n", gangline_storage::Digest::of(body.as_bytes()));
    std::fs::write(&path, sealed).unwrap();
    folder
}

#[test]
fn a_rank_may_have_several_files_since_version_3() {
    let folder = with_two_files_of_a_rank(3);
    let store = open(folder.path(), Options::reader());
    assert_eq!(store.verify(Step(7)).unwrap().problems, []);
    let loaded = store.load(Step(7)).unwrap();
    assert_eq!((loaded.info.world_size, loaded.tensors.len()), (1, 2));

    let (place, back) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let archive = Archive::open(place.path().to_str().unwrap(), &ArchiveOptions::default()).unwrap();
    archive.push(&store, Step(7)).unwrap();
    let pulled = open(back.path(), Options::default());
    archive.pull(None, &pulled).unwrap();
    assert_eq!(pulled.load(Step(7)).unwrap(), loaded);

    let older = with_two_files_of_a_rank(2);
    let refused = open(older.path(), Options::reader()).load(Step(7)).unwrap_err().to_string();
    assert!(refused.contains("its format version has no such shards or types"), "{refused}");
}

/// The content hash of step 7, whoever writes it.
fn load_version_1_hash() -> String {
    open(&fixture(), Options::reader()).load(Step(7)).unwrap().info.content_hash.to_string()
}

/// Proves A-10 for manifests: sealed by a hostile hand, and still refused.
#[test]
fn manifests_that_lie_are_refused_whatever_their_checksum_says() {
    let check = |from: &str, to: &str| {
        let refused = with_manifest(|text| {
            assert!(text.contains(from), "{text} lacks {from}");
            text.replace(from, to)
        });
        assert!(matches!(refused, Err(Error::Corrupt { .. })), "{from} -> {to}: {refused:?}");
    };
    check("gangline-checkpoint", "somebody-elses");
    check("\"step\":7", "\"step\":8");
    check("\"world_size\":1", "\"world_size\":2");
    check("\"world_size\":1", "\"world_size\":4294967295");
    check("\"rank\":0", "\"rank\":1");
    check("\"shape\":[31,17]", "\"shape\":[31,18]");
    check("\"shape\":[31,17]", "\"shape\":[18446744073709551615,17]");
    check("\"shape\":[31,17]", "\"shape\":[31000000000,17]");
    check("\"shape\":[31,17]", "\"shape\":[-1]");
    check("model.bias", "model.weight");
    check("model.bias", "model.other");
    check("model.bias", "");
    check("\"dtype\":\"F32\"", "\"dtype\":\"I32\"");
    check("\"shards\":", "\"slivers\":");
    let content = load_version_1_hash();
    check(&content, &gangline_storage::Digest::of(b"something else").to_string());
}
