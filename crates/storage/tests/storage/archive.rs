//! The archive as others see it: its format on disk, and tensors of the sizes that real ones have.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use gangline_storage::archive::{Archive, Error, KeyError, Options as ArchiveOptions, WrappingKey};
use gangline_storage::{Bytes, DataType, Flaw, Options, Step, Store, Tensor};

use crate::{files, note, open, state, views};

fn archive(folder: &Path) -> Archive {
    Archive::open(&format!("file://{}", folder.display()), &ArchiveOptions::default()).unwrap()
}

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/archive-version-1")
}

/// With `GANGLINE_BLESS=1` and no fixture there it is written first: what a program of version 1 wrote must not change.
#[test]
fn an_archive_of_version_1_is_read() {
    if std::env::var_os("GANGLINE_BLESS").is_some() && !fixture().exists() {
        write_the_fixture();
    }
    assert_holds_the_states(&archive(&fixture()));
}

/// Steps 7 and 8, as they were saved.
fn assert_holds_the_states(archive: &Archive) {
    let listed = archive.list().unwrap();
    assert_eq!(listed.iter().map(|one| one.step.0).collect::<Vec<_>>(), [7, 8]);
    let folder = tempfile::tempdir().unwrap();
    let back = open(folder.path(), Options::default());
    for one in listed {
        assert!(archive.verify(one.step).unwrap().is_good());
        archive.pull(Some(one.step), &back).unwrap();
        let loaded = back.load(one.step).unwrap();
        let mut expected = state(one.step.0);
        expected.sort_by(|a, b| a.name.cmp(&b.name));
        assert_eq!((loaded.tensors, loaded.info.metadata), (expected, note()));
        let archived = one.catalog.unwrap();
        assert_eq!(archived.content_hash, loaded.info.content_hash);
    }
}

/// Makes the fixture of a new version.
fn write_the_fixture() {
    push_the_states(&archive(&fixture()));
}

fn push_the_states(archive: &Archive) {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), Options::default());
    for step in [7, 8] {
        crate::save(&store, step).unwrap();
        archive.push(&store, Step(step)).unwrap();
    }
}

/// The same archive with the key of which every byte is this.
fn sealed(byte: u8) -> Archive {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    std::fs::write(&path, [byte; 32]).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let key = Some(WrappingKey::from_file(&path).unwrap());
    let options = ArchiveOptions { key, ..ArchiveOptions::default() };
    Archive::open(sealed_fixture().to_str().unwrap(), &options).unwrap()
}

fn sealed_fixture() -> PathBuf {
    fixture().with_file_name("archive-sealed-version-1")
}

/// With `GANGLINE_BLESS=1` and no fixture there it is written first.
#[test]
fn an_encrypted_archive_of_version_1_is_read() {
    if std::env::var_os("GANGLINE_BLESS").is_some() && !sealed_fixture().exists() {
        push_the_states(&sealed(5));
    }
    assert_holds_the_states(&sealed(5));
    assert_eq!(sealed(5).keys().unwrap().len(), 1);
    assert!(matches!(sealed(6).list(), Err(Error::Key(KeyError::Wrong { .. }))));
}

#[test]
fn a_catalog_of_a_newer_version_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    for file in files(&fixture()) {
        let target = folder.path().join(file.strip_prefix(fixture()).unwrap());
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::copy(&file, &target).unwrap();
    }
    let path = folder.path().join("catalogs/step-0000000007.json");
    let text = std::fs::read_to_string(&path).unwrap().replacen("\"version\":1", "\"version\":9", 1);
    let (body, _) = text.rsplit_once(",\"checksum\"").unwrap();
    let checksum = gangline_storage::Digest::of(body.as_bytes());
    std::fs::write(&path, format!("{body},\"checksum\":\"{checksum}\"}}\n")).unwrap();
    let refused = archive(folder.path()).verify(Step(7)).unwrap_err();
    assert!(matches!(refused, Error::Corrupt { flaw: Flaw::Version { found: 9, known: 2 }, .. }), "{refused:?}");
    assert!(archive(folder.path()).list().unwrap()[1].catalog.is_ok(), "the other is listed");
}

/// 20 million bytes of fp32 in two chunks, their bf16 copy, and noise that fills a pack.
#[test]
fn tensors_longer_than_a_chunk_and_a_pack_come_back() {
    let count = (4 << 20) + 17;
    let master: Vec<u8> =
        (0..count).flat_map(|i: u32| (0x3c00_0000 + (i.wrapping_mul(2_654_435) & 0x7f_ffff)).to_le_bytes()).collect();
    let copy = master.as_chunks::<4>().0.iter().flat_map(|[.., c, d]| [*c, *d]).collect();
    let mut noise = vec![0; 20 << 20];
    let mut word = 7_u64;
    for bytes in noise.as_chunks_mut::<8>().0 {
        // xorshift64 (Marsaglia 2003).
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        *bytes = word.to_le_bytes();
    }
    let length = usize::try_from(count).unwrap();
    let tensor = |name: &str, data_type, shape: &[usize], data| Tensor {
        name: name.to_owned(),
        data_type,
        shape: shape.to_vec(),
        data,
    };
    let tensors = [
        tensor("copy", DataType::Bf16, &[length], copy),
        tensor("master", DataType::F32, &[length], master),
        tensor("noise", DataType::U8, &[20 << 20], noise),
    ];
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("store"), Options::default());
    store.save(Step(5), &views(&tensors), &note()).unwrap().wait().unwrap();
    let archive = archive(&folder.path().join("archive"));
    let pushed = archive.push(&store, Step(5)).unwrap();
    assert_eq!(pushed.derived, Bytes(2 * u64::from(count)), "truncated, chunk by chunk");
    assert!(pushed.raw >= Bytes(20 << 20), "noise stays as it is: {pushed:?}");
    let back: Store = open(&folder.path().join("back"), Options::default());
    archive.pull(None, &back).unwrap();
    assert_eq!(back.load(Step(5)).unwrap(), store.load(Step(5)).unwrap());
}
