//! Checks every byte of a checkpoint on disk, and reports what is damaged.

use std::fmt;
use std::path::{Path, PathBuf};

use gangline_base::{Bytes, Step};
use serde::Serialize;

use crate::manifest::{Manifest, read_manifest};
use crate::present::Present;
use crate::reading::{Origin, Piece, read_pieces};
use crate::shard::Shard;
use crate::{Error, Flaw, layout};

/// The result of checking a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// The checkpoint.
    pub step: Step,
    /// Tensors whose bytes were read and found good.
    pub tensors_good: usize,
    /// Bytes of the intact shards.
    pub bytes_good: Bytes,
    /// What is wrong; empty if the checkpoint is good.
    pub problems: Vec<Problem>,
}

/// A defect of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file; in text form, bytes of its name that aren't UTF-8 are replaced.
    #[serde(serialize_with = "as_path_text")]
    pub file: PathBuf,
    /// The tensor, if the defect is within one.
    pub tensor: Option<String>,
    /// The defect.
    #[serde(serialize_with = "as_text")]
    pub flaw: Flaw,
}

fn as_path_text<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

fn as_text<S: serde::Serializer>(flaw: &Flaw, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(flaw)
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.tensor {
            Some(tensor) => write!(f, "{}, tensor {tensor:?}: {}", self.file.display(), self.flaw),
            None => write!(f, "{}: {}", self.file.display(), self.flaw),
        }
    }
}

impl VerifyReport {
    /// Reports whether every byte is as it was saved.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Reads all of the checkpoint in `root`'s folder of `step`. Also returns the manifest if it could be read.
///
/// # Errors
/// [`Error::NotFound`] if there is no such folder, or it was removed meanwhile; [`Error::Io`] if the
/// operating system refuses for a reason that says nothing about the files (permissions, too many open
/// files): no answer is better than a wrong one.
pub(crate) fn check(root: &Path, step: u64) -> Result<(Option<Manifest>, VerifyReport), Error> {
    let folder = root.join(layout::checkpoint_folder(step));
    let present = Present::find(&folder, Step(step))?;
    let (manifest, report) = check_folder(&folder, step)?;
    if !report.is_good() {
        present.check()?;
    }
    Ok((manifest, report))
}

/// Checks a checkpoint of `step` in a folder of any name.
pub(crate) fn check_folder(folder: &Path, step: u64) -> Result<(Option<Manifest>, VerifyReport), Error> {
    let mut report = VerifyReport { step: Step(step), tensors_good: 0, bytes_good: Bytes(0), problems: Vec::new() };
    let manifest = match read_manifest(&folder.join(layout::MANIFEST), step) {
        Ok(manifest) => manifest,
        Err(error) => {
            report.problems.push(problem_of(error)?);
            return Ok((None, report));
        }
    };
    for (name, record) in manifest.files() {
        let path = folder.join(name);
        let before = report.problems.len();
        match Shard::open(&path, record) {
            Err(error) => report.problems.push(problem_of(error)?),
            Ok(shard) => check_tensors(shard, &mut report)?,
        }
        if report.problems.len() == before {
            report.bytes_good = report.bytes_good + Bytes(record.bytes);
        }
    }
    Ok((Some(manifest), report))
}

fn check_tensors(shard: Shard<'_>, report: &mut VerifyReport) -> Result<(), Error> {
    let pieces: Vec<Piece> = (0..shard.len()).map(|tensor| Piece { shard: 0, tensor, is_checked: true }).collect();
    for outcome in read_pieces(&[shard], &pieces, Origin::Disk, Vec::new(), |_, _, _| ()) {
        match outcome {
            Ok(()) => report.tensors_good += 1,
            Err(error) => report.problems.push(problem_of(error)?),
        }
    }
    Ok(())
}

/// Converts an error into a defect of the checkpoint, or returns it if it prevents an answer.
fn problem_of(error: Error) -> Result<Problem, Error> {
    match error {
        Error::Corrupt { path, tensor, flaw } => Ok(Problem { file: path, tensor, flaw }),
        other => Err(other),
    }
}
