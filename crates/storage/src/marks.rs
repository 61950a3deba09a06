//! Marks: records of the tensors that this machine has read and found good since boot. Each shard file has
//! one small mark file, named after the system's attributes of the shard (device, inode, length, times) and
//! the manifest's record of its tensors, with a bit for each tensor.
//!
//! Marks only save work: a mark that is lost, torn or from another boot costs another hash and nothing else,
//! so they aren't synced.
//!
//! Invariant: at most [`MARKS_MAX`] are kept, the newest.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::Digest;
use crate::digest::FramedHasher;
use crate::reading::Piece;
use crate::shard::Shard;

/// The most marks that are kept.
const MARKS_MAX: usize = 1_024;
/// A random id that Linux draws at each boot (random(4)).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Bytes of a boot id: a UUID's text and a newline.
const BOOT_ID_BYTES_MAX: u64 = 64;
/// Bytes of the digest at the end of a mark.
const DIGEST_BYTES: usize = 32;

/// The marks of some shards.
#[derive(Debug)]
pub(crate) struct Marks {
    folder: PathBuf,
    /// For each shard its mark's name, and a bit for each of its tensors; no name if the shard can't have a
    /// mark.
    known: Vec<(Option<String>, Vec<u8>)>,
}

impl Marks {
    /// Reads the marks of these shards.
    pub(crate) fn look(folder: &Path, shards: &[Shard<'_>]) -> Marks {
        let boot = is_own(folder).then(boot_id).flatten();
        let look = |shard: &Shard<'_>| {
            let empty = vec![0; shard.len().div_ceil(8)];
            let Some(name) = boot.as_ref().and_then(|boot| name_of(boot, shard)) else { return (None, empty) };
            let found = read(&folder.join(&name), empty.len());
            (Some(name), found.unwrap_or(empty))
        };
        Marks { folder: folder.to_owned(), known: shards.iter().map(look).collect() }
    }

    /// Reports whether a tensor was found good before.
    pub(crate) fn has(&self, Piece { shard, tensor, .. }: Piece) -> bool {
        let (name, bits) = &self.known[shard];
        name.is_some() && bits[tensor / 8] >> (tensor % 8) & 1 == 1
    }

    /// Marks these pieces as good, unless their file has changed since its mark was read.
    pub(crate) fn note(&mut self, shards: &[Shard<'_>], pieces: &[Piece]) {
        let Some(boot) = boot_id() else { return };
        let mut is_new = vec![false; shards.len()];
        for Piece { shard, tensor, is_checked } in pieces {
            self.known[*shard].1[tensor / 8] |= u8::from(*is_checked) << (tensor % 8);
            is_new[*shard] |= is_checked;
        }
        for ((shard, (name, bits)), is_new) in shards.iter().zip(&self.known).zip(is_new) {
            let is_same = name.is_some() && name_of(&boot, shard) == *name;
            if let (Some(name), true, true) = (name, is_same, is_new) {
                // Without the mark, the tensors are hashed again the next time.
                let _ = write(&self.folder, name, bits);
            }
        }
        let _ = remove_oldest(&self.folder);
    }
}

/// Reports whether a folder belongs to this user and nobody else may write to it. Creates it if it is
/// missing.
fn is_own(folder: &Path) -> bool {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    let own = rustix::process::geteuid().as_raw();
    let is_ours = |found: fs::Metadata| found.is_dir() && found.uid() == own && found.mode() & 0o022 == 0;
    made.is_ok() && fs::symlink_metadata(folder).is_ok_and(is_ours)
}

fn boot_id() -> Option<Vec<u8>> {
    let mut id = Vec::new();
    fs::File::open(BOOT_ID).ok()?.take(BOOT_ID_BYTES_MAX).read_to_end(&mut id).ok()?;
    (!id.is_empty()).then_some(id)
}

fn name_of(boot: &[u8], shard: &Shard<'_>) -> Option<String> {
    let found = shard.metadata().ok()?;
    let mut hasher = FramedHasher::new("gangline verified mark 1");
    hasher.field(boot);
    for number in [found.dev(), found.ino(), found.len()] {
        hasher.number(number);
    }
    for number in [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()] {
        hasher.field(&number.to_le_bytes());
    }
    for tensor in 0..shard.len() {
        hasher.field(shard.place(tensor).record.blake3.as_bytes());
    }
    Some(hasher.finish().to_string())
}

/// Returns the bits of a mark, if it is intact.
fn read(path: &Path, length: usize) -> Option<Vec<u8>> {
    let mut bits = Vec::new();
    let whole = length + DIGEST_BYTES;
    fs::File::open(path).ok()?.take(whole as u64 + 1).read_to_end(&mut bits).ok()?;
    let (found, digest) = bits.split_at_checked(length)?;
    (digest == Digest::of(found).as_bytes().as_slice()).then(|| found.to_vec())
}

fn write(folder: &Path, name: &str, bits: &[u8]) -> io::Result<()> {
    let aside = folder.join(format!("{name}.{}", std::process::id()));
    let mut file = fs::File::create(&aside)?;
    file.write_all(bits)?;
    file.write_all(Digest::of(bits).as_bytes())?;
    fs::rename(&aside, folder.join(name))
}

fn remove_oldest(folder: &Path) -> io::Result<()> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        found.push((entry.metadata()?.modified()?, entry.path()));
    }
    found.sort_unstable();
    let spare = found.len().saturating_sub(MARKS_MAX);
    found.iter().take(spare).try_for_each(|(_, path)| fs::remove_file(path))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::manifest::read_manifest;
    use crate::{DataType, Options, Step, Store, TensorView, Verify, Wanted, layout};

    const BYTES: usize = 5_000;

    /// Returns a store with one tensor, one byte of whose file was changed after the save.
    fn damaged(root: &Path) -> Store {
        let store = Store::open(root, Options::default()).expect("a store");
        let tensor =
            TensorView { name: "w", data_type: DataType::U8, shape: &[BYTES], data: &[7; BYTES], part_of: None };
        store.save(Step(1), &[tensor], &BTreeMap::new()).and_then(crate::Pending::wait).expect("a save");
        let path = root.join(layout::checkpoint_folder(1)).join(layout::shard_file(0, 1));
        let mut bytes = fs::read(&path).expect("the file");
        *bytes.last_mut().expect("it has bytes") = 8;
        fs::write(&path, bytes).expect("the file");
        store
    }

    fn read(store: &Store, marks: &Path) -> Result<Vec<u8>, crate::Error> {
        let mut data = vec![0; BYTES];
        let wanted = Wanted { name: "w", data_type: DataType::U8, offsets: &[0], shape: &[BYTES], data: &mut data };
        store.open_step(Step(1))?.read_verifying(&mut [wanted], &Verify::First(marks.to_owned()))?;
        Ok(data)
    }

    #[test]
    fn what_has_a_mark_is_not_hashed_again_until_its_file_changes() {
        let (root, marks) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let store = damaged(root.path());
        assert!(read(&store, marks.path()).is_err());
        let folder = root.path().join(layout::checkpoint_folder(1));
        let manifest = read_manifest(&folder.join(layout::MANIFEST), 1).expect("the manifest");
        let path = folder.join(layout::shard_file(0, 1));
        let shards = [Shard::open(&path, &manifest.shards[0]).expect("its header is good")];
        let piece = Piece { shard: 0, tensor: 0, is_checked: true };
        Marks::look(marks.path(), &shards).note(&shards, &[piece]);
        assert!(Marks::look(marks.path(), &shards).has(piece));
        assert_eq!(read(&store, marks.path()).expect("a mark says that it is good").last(), Some(&8));
        fs::File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_modified(fs::metadata(&path)?.modified()?))
            .expect("a touch");
        assert!(!Marks::look(marks.path(), &shards).has(piece), "its time of change is another");
        assert!(read(&store, marks.path()).is_err());
    }

    /// Proves A-10 for marks.
    #[test]
    fn the_oldest_marks_go_when_there_are_too_many() {
        let marks = tempfile::tempdir().expect("a folder");
        for number in 0..MARKS_MAX + 3 {
            fs::write(marks.path().join(format!("{number:05}")), []).expect("a mark");
        }
        remove_oldest(marks.path()).expect("a folder that can be listed");
        let mut left: Vec<_> =
            fs::read_dir(marks.path()).expect("the folder").map(|entry| entry.expect("an entry").file_name()).collect();
        left.sort();
        assert_eq!((left.len(), left[0].to_str()), (MARKS_MAX, Some("00003")));
    }
}
