//! Staging folders: a supervisor gives its ranks a folder in memory (tmpfs), so that if a rank dies after it
//! has copied a save, another process finishes the save.
//!
//! The copy of a save is a file there. Once it is complete, a note beside it describes the save. The note is
//! removed when the save has ended, well or not; so a note without a living rank is a save to be finished
//! ([`finish_staged`]). Copies survive only while the operating system runs: a node that goes down loses
//! them. DLRover's Flash Checkpoint also passes copies to an agent in shared memory:
//! <https://github.com/intelligent-machine-learning/dlrover/blob/master/docs/blogs/flash_checkpoint.md>.
//!
//! Keeps A-6 (a save is finished by the usual steps, and only if every rank's part was staged or saved), A-9
//! (notes have a version) and A-10 (notes are limited in number and size).

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gangline_base::Step;
use rustix::fs::statvfs;
use serde::{Deserialize, Serialize};

use crate::alike::Alike;
use crate::commit::{Committer, Shared, Work};
use crate::error::within;
use crate::lineage::Origin;
use crate::manifest::{FORMAT_VERSION, ONE_FILE_A_RANK, read_manifest, read_sealed, seal};
use crate::memory::Memory;
use crate::options::{Options, Role, Writer};
use crate::prune::list_names;
use crate::shard::Declared;
use crate::staged::{Described, Staged};
use crate::{Digest, Error, Flaw, NoteTypes, Saved, layout};

/// What a note says it is.
const MAGIC: &str = "gangline-staged-save";
/// Suffix of a note's name, after the name of the copy.
const NOTE_SUFFIX: &str = ".json";
/// The most notes read in a folder: several for each rank of a large node.
const NOTES_MAX: usize = 4_096;

/// The most copies of a rank: those in flight, for each of several stores.
const FILES_MAX: usize = 64;

/// A rank's files in a staging folder.
#[derive(Debug)]
pub(crate) struct Staging {
    folder: PathBuf,
    rank: u32,
}

/// A note: describes the save that a copy belongs to.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    magic: String,
    version: u32,
    /// The store's folder.
    root: PathBuf,
    rank: u32,
    world_size: u32,
    tag: u64,
    step: u64,
    metadata: BTreeMap<String, String>,
    #[serde(default)]
    metadata_types: NoteTypes,
    #[serde(default)]
    run: Option<String>,
    #[serde(default)]
    resumed: Option<Origin>,
    plan_blake3: Digest,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    turn: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    alike: Option<String>,
    header_bytes: usize,
    tensors: Vec<Declared>,
    /// Descriptions of the rank's further files, if its tensors exceed the header of one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    more: Vec<Described>,
}

impl Note {
    /// Returns the save in this copy, if the description fits it.
    fn staged(&self, copy: Memory) -> Option<Staged> {
        let first = Described { header_bytes: self.header_bytes, tensors: self.tensors.clone() };
        Staged::found(copy, std::iter::once(first).chain(self.more.iter().cloned()))
    }
}

/// For fuzzing: returns the save that a note describes in a copy of this many bytes.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn parse_note(text: &[u8], copy_bytes: usize) -> Option<Staged> {
    let note: Note = crate::manifest::unseal(text, MAGIC, FORMAT_VERSION).ok()?;
    note.staged(Memory::own(copy_bytes).ok()?)
}

/// A note on disk; removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Noted(PathBuf);

/// The outcome of a save whose rank died before finishing it.
#[derive(Debug)]
pub struct Finished {
    /// The step.
    pub step: Step,
    /// The rank that had copied it.
    pub rank: u32,
    /// The checkpoint, now durable and visible; or the reason why the save failed, in which case nothing of
    /// this rank's part is left.
    pub outcome: Result<Saved, Error>,
}

impl Staging {
    /// Returns the staging of a rank in an existing folder.
    pub(crate) fn new(folder: &Path, rank: u32) -> Staging {
        Staging { folder: folder.to_owned(), rank }
    }

    /// Allocates memory as a file in the folder; none if that fails. It takes at most half of the free space,
    /// since other files live there too, such as the batches that PyTorch's data loaders pass on.
    pub(crate) fn memory(&self, bytes: usize) -> Option<Memory> {
        let room = statvfs(&self.folder).ok()?;
        if bytes as u64 > room.f_bavail.saturating_mul(room.f_frsize) / 2 {
            return None;
        }
        // A rank may have several stores.
        let names = (0..FILES_MAX).map(|number| self.folder.join(format!("rank-{:05}-{number}", self.rank)));
        let mut made = names.map(|path| Memory::new_file(path, bytes));
        made.find(|made| !made.as_ref().is_err_and(|error| error.kind() == ErrorKind::AlreadyExists))?.ok()
    }
}

impl Noted {
    /// Writes the note of a save; none if its copy isn't a file that others can find, or there is no room for
    /// the note.
    pub(crate) fn write(work: &Work, root: &Path, (run, writer): (&str, Writer)) -> Option<Noted> {
        let copy = work.staged.file()?;
        let Writer { rank, world_size, tag } = writer;
        let mut files = work.staged.described().cloned();
        let Described { header_bytes, tensors } = files.next()?;
        let more: Vec<Described> = files.collect();
        let note = Note {
            magic: MAGIC.to_owned(),
            version: if more.is_empty() { ONE_FILE_A_RANK } else { FORMAT_VERSION },
            root: std::path::absolute(root).ok()?,
            rank,
            world_size,
            tag,
            step: work.step.0,
            metadata: work.metadata.clone(),
            metadata_types: work.metadata_types.clone(),
            run: Some(run.to_owned()),
            resumed: work.resumed.clone(),
            plan_blake3: work.plan,
            turn: Some(work.turn),
            alike: work.alike.as_ref().map(|alike| alike.digests.clone()),
            header_bytes,
            tensors,
            more,
        };
        let path = note_of(copy)?;
        let aside = path.with_extension("aside");
        let noted = Noted(path);
        std::fs::write(&aside, seal(&note)).ok()?;
        std::fs::rename(&aside, &noted.0).ok()?;
        Some(noted)
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        // A note that stays belongs to a completed save, which the process that reads the note notices.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn note_of(copy: &Path) -> Option<PathBuf> {
    Some(copy.with_file_name(format!("{}{NOTE_SUFFIX}", copy.file_name()?.to_str()?)))
}

/// Finishes the saves that ranks of this node had copied into `folder` when they died, oldest first, and
/// removes the copies. Every node of the gang does this for its own ranks at about the same time; `wait_max`
/// is how long each waits for the others. No rank of the attempt may be alive, and the next attempt must not
/// have begun.
///
/// # Errors
/// [`Error::Io`] if the folder can't be read, [`Error::Limit`] if it holds too many files. A failure of one
/// save is reported in its outcome.
pub fn finish_staged(folder: &Path, wait_max: Duration) -> Result<Vec<Finished>, Error> {
    let mut notes = Vec::new();
    for name in list_names(folder)?.into_iter().filter(|name| name.ends_with(NOTE_SUFFIX)) {
        within("notes in a staging folder", notes.len() + 1, NOTES_MAX)?;
        let path = folder.join(&name);
        let note: Note = read_sealed(&path, MAGIC)?;
        notes.push((note, path));
    }
    notes.sort_by_key(|(note, _)| (note.step, note.rank));
    let mut finished = Vec::new();
    for of_step in notes.chunk_by(|(a, _), (b, _)| a.step == b.step) {
        // One thread for each rank, because ranks wait for each other.
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                of_step.iter().map(|(note, path)| scope.spawn(|| finish(note, path, wait_max))).collect();
            for ((note, _), thread) in of_step.iter().zip(threads) {
                let outcome = thread.join().expect("finishing doesn't panic");
                finished.push(Finished { step: Step(note.step), rank: note.rank, outcome });
            }
        });
    }
    Ok(finished)
}

fn finish(note: &Note, path: &Path, wait_max: Duration) -> Result<Saved, Error> {
    let copy = path.with_extension("");
    let unreadable = |source| Error::io("read", &copy, source);
    let memory = Memory::found_file(copy.clone()).map_err(unreadable)?;
    let noted = Noted(path.to_owned());
    if let Some(saved) = saved_already(note) {
        return Ok(saved);
    }
    let malformed =
        Error::corrupt(path, Flaw::Malformed { what: "its tensors don't lie one after the other in its copy" });
    let staged = note.staged(memory).ok_or(malformed)?;
    let Note { rank, world_size, tag, .. } = *note;
    let role = Role::Writer { rank, world_size, tag };
    // Retention is left to the next save, since it would take time here.
    let run = note.run.clone();
    let options = Options { role, keep: None, run, commit_timeout: wait_max, ..Options::default() };
    options.check()?;
    let work = Work {
        step: Step(note.step),
        staged,
        metadata: note.metadata.clone(),
        metadata_types: note.metadata_types.clone(),
        plan: note.plan_blake3,
        resumed: note.resumed.clone(),
        turn: note.turn.unwrap_or(1),
        alike: note.alike.clone().map(Alike::found),
        is_taken_over: true,
        gate: None,
        noted: Some(noted),
    };
    Committer::new(Shared::new(note.root.clone(), options), Writer { rank, world_size, tag }, None).run(work)
}

/// Returns the checkpoint, if the rank had saved it and only the note was left.
fn saved_already(note: &Note) -> Option<Saved> {
    let manifest = note.root.join(layout::checkpoint_folder(note.step)).join(layout::MANIFEST);
    let manifest = read_manifest(&manifest, note.step).ok()?;
    (manifest.writer == note.tag).then(|| Saved::of(&manifest))
}
