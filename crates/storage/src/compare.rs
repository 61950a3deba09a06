//! Compares the tensors of two checkpoints.
//!
//! Equal hashes mean equal bytes. Different hashes mean different bytes if both tensors were saved whole or
//! with the same sharding: most tensors are compared without reading them. If the shardings differ, the bytes
//! are compared, segment by segment as one side is read (A-10: memory doesn't depend on the tensor).

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::PoisonError;

use serde::Serialize;

use crate::manifest::ShardRecord;
use crate::region::Region;
use crate::shard::{Placed, Shard};
use crate::{CheckpointInfo, Error, Snapshot, TensorInfo};

/// Bytes that are compared at once.
const COMPARED_BYTES: usize = 64 << 10;

/// The difference between two versions of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The bytes are equal.
    Equal,
    /// The bytes differ.
    Changed,
    /// The element type or shape differs.
    Redeclared,
    /// Only the later checkpoint has it.
    Added,
    /// Only the earlier checkpoint has it.
    Removed,
    /// The sharding differs, so the hashes aren't comparable; [`Snapshot::is_equal_to`] compares the bytes.
    Recut,
}

/// A tensor that at least one of two checkpoints has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compared<'a> {
    /// How its two versions differ.
    pub verdict: Verdict,
    /// The earlier version; none if it was added.
    pub before: Option<&'a TensorInfo>,
    /// The later version; none if it was removed.
    pub after: Option<&'a TensorInfo>,
}

impl<'a> Compared<'a> {
    /// Returns the later version, or the earlier one if the tensor was removed.
    #[must_use]
    pub fn tensor(&self) -> &'a TensorInfo {
        self.after.or(self.before).expect("what is compared is on one side at least")
    }

    fn of(before: Option<&'a TensorInfo>, after: Option<&'a TensorInfo>) -> Compared<'a> {
        let verdict = match (before, after) {
            (None, _) => Verdict::Added,
            (_, None) => Verdict::Removed,
            (Some(before), Some(after)) => judge(before, after),
        };
        Compared { verdict, before, after }
    }
}

fn judge(before: &TensorInfo, after: &TensorInfo) -> Verdict {
    if (before.data_type, &before.shape) != (after.data_type, &after.shape) {
        Verdict::Redeclared
    } else if before.hash == after.hash {
        Verdict::Equal
    } else if before.cut == after.cut {
        Verdict::Changed
    } else {
        Verdict::Recut
    }
}

/// Compares the tensors of two checkpoints, by name, using only their manifests.
#[must_use]
pub fn compare<'a>(before: &'a CheckpointInfo, after: &'a CheckpointInfo) -> Vec<Compared<'a>> {
    let (mut old, mut new) = (before.tensors.iter().peekable(), after.tensors.iter().peekable());
    let mut all = Vec::new();
    loop {
        let (is_old, is_new) = match (old.peek(), new.peek()) {
            (None, None) => return all,
            (Some(old), Some(new)) => (old.name <= new.name, new.name <= old.name),
            (old, new) => (old.is_some(), new.is_some()),
        };
        all.push(Compared::of(old.next_if(|_| is_old), new.next_if(|_| is_new)));
    }
}

impl Snapshot {
    /// Reports whether a tensor has the same type, shape and bytes in both checkpoints, whatever its
    /// sharding. Reads it in both, in about 100 MiB of memory, whatever the size of the tensor.
    ///
    /// # Errors
    /// [`Error::InvalidTensor`] if one of them has no such tensor; [`Error::Corrupt`] naming the file and
    /// tensor that isn't what was saved; [`Error::Io`].
    pub fn is_equal_to(&self, other: &Snapshot, name: &str) -> Result<bool, Error> {
        let (mine, theirs) = (self.tensor(name)?, other.tensor(name)?);
        if (mine.data_type, &mine.shape) != (theirs.data_type, &theirs.shape) {
            return Ok(false);
        }
        let files: Vec<(PathBuf, &ShardRecord)> = other.shards_with(name);
        let shards = files.iter().map(|(path, record)| Shard::open(path, record)).collect::<Result<Vec<_>, Error>>()?;
        let parts: Vec<(&Shard<'_>, Placed<'_>)> = shards.iter().flat_map(|shard| parts_of(shard, name)).collect();
        let boxes: Vec<(&str, Region)> = parts.iter().map(|(_, part)| (name, part.record.region())).collect();
        let outcome = Mutex::new(Ok(true));
        self.scatter(&boxes, |of, overlap, at, bytes| {
            let (shard, part) = parts[of];
            let compared = overlap.each_run(at, bytes, |to, run| has(shard, part.start + to as u64, run));
            if let Err(difference) = compared {
                *outcome.lock().unwrap_or_else(PoisonError::into_inner) = difference.map_or(Ok(false), Err);
            }
        })?;
        let is_equal = outcome.into_inner().unwrap_or_else(PoisonError::into_inner)?;
        if !is_equal {
            // The difference may be damage of the other side: its check reports that.
            other.scatter(&[(name, Region::whole(&theirs.shape))], |_, _, _, _| ())?;
        }
        Ok(is_equal)
    }
}

fn parts_of<'a>(shard: &'a Shard<'a>, name: &str) -> impl Iterator<Item = (&'a Shard<'a>, Placed<'a>)> {
    let parts = (0..shard.len()).map(|index| shard.place(index));
    parts.filter(move |part| part.record.name == name).map(move |part| (shard, part))
}

/// Compares a range of a file with these bytes; an error without a cause if they differ.
fn has(shard: &Shard<'_>, mut start: u64, bytes: &[u8]) -> Result<(), Option<Error>> {
    let mut buffer = [0; COMPARED_BYTES];
    for bytes in bytes.chunks(COMPARED_BYTES) {
        let found = &mut buffer[..bytes.len()];
        let read = shard.files().1.read_exact_at(found, start);
        read.map_err(|source| Some(Error::reading(shard.path(), source)))?;
        if found != bytes {
            return Err(None);
        }
        start += bytes.len() as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bytes, DataType, Digest, Step};

    fn tensor(name: &str, shape: &[usize], hash: &[u8], cut: Option<&[u8]>) -> TensorInfo {
        let [hash, cut] = [Some(hash), cut].map(|bytes| bytes.map(Digest::of));
        let hash = hash.expect("always one");
        let (name, shape) = (name.to_owned(), shape.to_vec());
        TensorInfo { name, data_type: DataType::F32, shape, bytes: Bytes(4), hash, parts: 1, cut }
    }

    fn info(tensors: &[TensorInfo]) -> CheckpointInfo {
        CheckpointInfo {
            step: Step(1),
            writer: 0,
            world_size: 1,
            bytes: Bytes(0),
            content_hash: Digest::of(b""),
            metadata: std::collections::BTreeMap::new(),
            metadata_types: crate::NoteTypes::new(),
            saved_at: None,
            run: None,
            branch: crate::Branch::default(),
            parent: None,
            tensors: tensors.to_vec(),
        }
    }

    #[test]
    fn each_tensor_is_judged_once_and_unequal_hashes_only_if_they_can_be_compared() {
        let before = info(&[
            tensor("cut", &[1], b"x", Some(b"rows")),
            tensor("equal", &[1], b"x", None),
            tensor("gone", &[1], b"x", None),
            tensor("recut", &[1], b"x", None),
            tensor("same cut", &[1], b"x", Some(b"rows")),
            tensor("shape", &[1], b"x", None),
        ]);
        let after = info(&[
            tensor("changed and new", &[1], b"x", None),
            tensor("cut", &[1], b"y", Some(b"rows")),
            tensor("equal", &[1], b"x", None),
            tensor("recut", &[1], b"y", Some(b"rows")),
            tensor("same cut", &[1], b"x", Some(b"rows")),
            tensor("shape", &[1, 1], b"x", None),
            tensor("z", &[1], b"x", None),
        ]);
        let verdicts: Vec<(&str, Verdict)> =
            compare(&before, &after).iter().map(|one| (one.tensor().name.as_str(), one.verdict)).collect();
        let expected = [
            ("changed and new", Verdict::Added),
            ("cut", Verdict::Changed),
            ("equal", Verdict::Equal),
            ("gone", Verdict::Removed),
            ("recut", Verdict::Recut),
            ("same cut", Verdict::Equal),
            ("shape", Verdict::Redeclared),
            ("z", Verdict::Added),
        ];
        assert_eq!(verdicts, expected);
        assert!(compare(&info(&[]), &info(&[])).is_empty());
    }
}
