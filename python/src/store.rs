//! The store: passes tensors as numpy arrays of bytes, and everything that it returns as JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::ManuallyDrop;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gangline_storage::{
    AlikeValue, Bytes, Compare, Error, NoteTypes, Options, PartOf, PrunePolicy, Role, Rule, Step, TensorView,
};
use numpy::{PyReadonlyArray1, PyReadwriteArray1};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::{Deserialize, Serialize};

use crate::archive::{self, Place};
use crate::errors::{exception, refused};
use crate::pending::Pending;
use crate::snapshot::{Snapshot, data_type_of};

/// How many words of a tensor `samples` takes, about.
const SAMPLES: usize = 64;

/// A tensor from Python: name, safetensors' name of its type, dimensions, bytes; and for a part of a sharded
/// tensor, the dimensions of the whole and the part's offsets.
type Given<'py> = (String, String, Vec<usize>, PyReadonlyArray1<'py, u8>, Option<(Vec<usize>, Vec<usize>)>);

/// The checkpoints to keep, from Python: the number of newest good ones, none for all; and the rules as JSON.
type Keep = (Option<usize>, String);

/// A retention rule, as Python writes it.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum GivenRule {
    EverySteps(NonZeroU64),
    EveryHours(NonZeroU32),
    Lowest(String, u32),
    Highest(String, u32),
    Steps(BTreeSet<u64>),
}

/// The metadata of a save, the types of its values as JSON, and values to compare with other ranks', from Python.
type Notes = (BTreeMap<String, String>, String, Vec<(String, String)>);

/// What the store is asked to save.
struct Asked<'a> {
    tensors: &'a [TensorView<'a>],
    notes: (&'a BTreeMap<String, String>, &'a NoteTypes),
    values: &'a [AlikeValue<'a>],
}

/// A checkpoint's step, its manifest as JSON, or why that can't be read.
type Listed = (u64, Option<String>, Option<String>);

/// A folder of checkpoints.
#[pyclass(frozen, module = "gangline._native")]
pub(crate) struct Store {
    /// None once it is closed. Calls clone the `Arc` rather than hold the lock, so that they don't block each
    /// other.
    inner: Mutex<Option<Arc<gangline_storage::Store>>>,
    /// The id of the process that opened it: a forked child doesn't have the writing thread.
    process: u32,
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<gangline_storage::Store>>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a reference to the store that keeps it open.
    fn share(&self) -> PyResult<Arc<gangline_storage::Store>> {
        if self.process != std::process::id() {
            return Err(refused("use a store in a forked process: open it again there"));
        }
        self.lock().clone().ok_or_else(|| exception(&Error::Closed))
    }

    /// Begins a save of what Python passed.
    fn begin<T: Send>(
        &self,
        py: Python<'_>,
        tensors: &[Given<'_>],
        (metadata, types, values): &Notes,
        save: impl Send + FnOnce(&gangline_storage::Store, &Asked<'_>) -> Result<T, Error>,
    ) -> PyResult<T> {
        let types = serde_json::from_str(types).map_err(|why| refused(&format!("save the metadata: {why}")))?;
        let mut views = Vec::with_capacity(tensors.len());
        for (name, data_type, shape, data, part_of) in tensors {
            let not_flat = |_| refused(&format!("accept tensor {name:?}: its bytes are not contiguous"));
            let (data_type, data) = (data_type_of(name, data_type)?, data.as_slice().map_err(not_flat)?);
            let part_of = part_of.as_ref().map(|(shape, offsets)| PartOf { shape, offsets });
            views.push(TensorView { name, data_type, shape, data, part_of });
        }
        let values: Vec<AlikeValue<'_>> =
            values.iter().map(|(name, data)| AlikeValue { name, data: data.as_bytes() }).collect();
        let asked = Asked { tensors: &views, notes: (metadata, &types), values: &values };
        self.ask(py, |store| save(store, &asked))
    }

    /// Calls the store with the GIL released.
    fn ask<T: Send>(
        &self,
        py: Python<'_>,
        question: impl Send + FnOnce(&gangline_storage::Store) -> Result<T, Error>,
    ) -> PyResult<T> {
        let store = self.share()?;
        py.detach(|| question(&store)).map_err(|error| exception(&error))
    }

    fn ask_json<T: Send + Serialize>(
        &self,
        py: Python<'_>,
        question: impl Send + FnOnce(&gangline_storage::Store) -> Result<T, Error>,
    ) -> PyResult<String> {
        let answer = self.ask(py, question)?;
        Ok(serde_json::to_string(&answer).expect("the store's answers have string keys and no failing serializer"))
    }
}

#[pymethods]
impl Store {
    /// Opens the folder; see `gangline.Store`. Without a writer it is opened for reading.
    #[new]
    #[pyo3(signature = (path, *, writer=None, run=None, keep=None, commit_timeout_seconds=None, staging=None, archive=None, restore_below=None, memory_max=None, keep_memory=true, compare_all=false))]
    #[expect(clippy::too_many_arguments, reason = "Python passes all but the path by name")]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        writer: Option<(u32, u32, u64)>,
        run: Option<String>,
        keep: Option<Keep>,
        commit_timeout_seconds: Option<f64>,
        staging: Option<PathBuf>,
        archive: Option<Place>,
        restore_below: Option<u64>,
        memory_max: Option<u64>,
        keep_memory: bool,
        compare_all: bool,
    ) -> PyResult<Self> {
        let role = writer.map_or(Role::Reader, |(rank, world_size, tag)| Role::Writer { rank, world_size, tag });
        let restore_below = restore_below.map(Step);
        let (memory_max, keeps_memory) = (memory_max.map(Bytes), keep_memory);
        let compare = if compare_all { Compare::All } else { Compare::Sampled };
        let mut options =
            Options { role, run, staging, restore_below, memory_max, keeps_memory, compare, ..Options::default() };
        options.archive = archive.map(archive::tier).transpose()?;
        let (last, rules) = keep.unwrap_or((None, "[]".to_owned()));
        options.keep = last.map(keep_of).transpose()?;
        options.rules = rules_of(&rules)?;
        if let Some(seconds) = commit_timeout_seconds {
            let timeout = Duration::try_from_secs_f64(seconds);
            options.commit_timeout = timeout.map_err(|_| refused("open the store: commit_timeout is no duration"))?;
        }
        let inner = py.detach(|| gangline_storage::Store::open(path, options)).map_err(|error| exception(&error))?;
        Ok(Store { inner: Mutex::new(Some(Arc::new(inner))), process: std::process::id() })
    }

    /// Copies the tensors, and writes them in the background. `notes` are the metadata, the types of the
    /// values in it that aren't text, and values that are only compared with other ranks'.
    fn save(&self, py: Python<'_>, step: u64, tensors: Vec<Given<'_>>, notes: Notes) -> PyResult<Pending> {
        let ask = |store: &gangline_storage::Store, asked: &Asked<'_>| {
            store.save_noted(Step(step), asked.tensors, asked.notes, asked.values)
        };
        self.begin(py, &tensors, &notes, ask).map(Pending::new)
    }

    /// Saves like `save`, while other threads go on; the checkpoint isn't visible before `Pending.confirm`.
    fn save_unconfirmed(&self, py: Python<'_>, step: u64, tensors: Vec<Given<'_>>, notes: Notes) -> PyResult<Pending> {
        let ask = |store: &gangline_storage::Store, asked: &Asked<'_>| {
            store.save_unconfirmed(Step(step), asked.tensors, asked.notes, asked.values)
        };
        self.begin(py, &tensors, &notes, ask).map(Pending::unconfirmed)
    }

    /// Refuses a save: tells the other ranks why this one doesn't take part in it.
    fn refuse(&self, py: Python<'_>, step: u64, why: &str) -> PyResult<()> {
        self.ask(py, |store| store.refuse(Step(step), why))
    }

    /// Opens a checkpoint for reading.
    fn open_step(&self, py: Python<'_>, step: u64) -> PyResult<Snapshot> {
        self.ask(py, |store| store.open_step(Step(step))).map(Snapshot::new)
    }

    /// Returns the newest good checkpoint and the skipped ones, as JSON.
    fn latest(&self, py: Python<'_>) -> PyResult<String> {
        self.ask_json(py, gangline_storage::Store::latest)
    }

    /// Returns the steps from which training may resume, the newest save first.
    fn line(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        Ok(self.ask(py, gangline_storage::Store::line)?.into_iter().map(|step| step.0).collect())
    }

    /// Records that training resumes from this checkpoint.
    fn resume_from(&self, py: Python<'_>, step: u64) -> PyResult<()> {
        self.ask(py, |store| store.resume_from(Step(step)))
    }

    /// Returns the branches of the folder's saves, the current one last; as JSON.
    fn branches(&self, py: Python<'_>) -> PyResult<String> {
        self.ask_json(py, gangline_storage::Store::branches)
    }

    /// Removes one checkpoint.
    fn delete(&self, py: Python<'_>, step: u64) -> PyResult<()> {
        self.ask(py, |store| store.delete(Step(step)))
    }

    /// Lists all checkpoints, oldest first.
    fn list(&self, py: Python<'_>) -> PyResult<Vec<Listed>> {
        let listed = self.ask(py, gangline_storage::Store::list)?;
        let told = |listed: gangline_storage::Listed| match listed.manifest {
            Ok(info) => (listed.step.0, serde_json::to_string(&info).ok(), None),
            Err(error) => (listed.step.0, None, Some(error.to_string())),
        };
        Ok(listed.into_iter().map(told).collect())
    }

    /// Reads every byte of a checkpoint; returns the report as JSON.
    fn verify(&self, py: Python<'_>, step: u64) -> PyResult<String> {
        self.ask_json(py, |store| store.verify(Step(step)))
    }

    /// Removes the checkpoints of the current line that `keep` doesn't select, or only reports them; as JSON.
    fn prune(&self, py: Python<'_>, keep: Keep, is_dry_run: bool) -> PyResult<String> {
        let last = keep_of(keep.0.ok_or_else(|| refused("prune: say how many of the newest to keep"))?)?;
        let policy = PrunePolicy::Keep { last, rules: rules_of(&keep.1)? };
        self.ask_json(py, |store| store.prune(&policy, is_dry_run))
    }

    /// Removes the checkpoints of the current line above a step, or only reports them; as JSON.
    fn prune_above(&self, py: Python<'_>, step: u64, is_dry_run: bool) -> PyResult<String> {
        self.ask_json(py, |store| store.prune(&PrunePolicy::Above(Step(step)), is_dry_run))
    }

    /// Removes abandoned checkpoints, of one branch if given, or only reports them; as JSON.
    #[pyo3(signature = (branch, is_dry_run))]
    fn prune_abandoned(&self, py: Python<'_>, branch: Option<&str>, is_dry_run: bool) -> PyResult<String> {
        let branch = branch.map(str::parse).transpose().map_err(|why| refused(&format!("prune: {why}")))?;
        self.ask_json(py, |store| store.prune(&PrunePolicy::Abandoned(branch), is_dry_run))
    }

    /// Puts a checkpoint into an archive.
    fn push(&self, py: Python<'_>, step: u64, place: Place) -> PyResult<String> {
        archive::push(py, &*self.share()?, place, step)
    }

    /// Returns the outcome of the last push to the archive, once; with `is_waiting` waits until everything is
    /// archived.
    fn archived(&self, py: Python<'_>, is_waiting: bool) -> PyResult<Option<String>> {
        let store = self.share()?;
        archive::archived(py.detach(|| if is_waiting { store.wait_archived() } else { store.archived() }))
    }

    /// Fetches a checkpoint, or the newest, from an archive.
    fn pull(&self, py: Python<'_>, step: Option<u64>, place: Place) -> PyResult<String> {
        archive::pull(py, &*self.share()?, place, step)
    }

    /// Fetches the newest checkpoint of an archive, if it was saved after the local ones.
    fn pull_newer(&self, py: Python<'_>, place: Place) -> PyResult<()> {
        archive::pull_newer(py, &*self.share()?, place)
    }

    /// Returns the steps of an archive's whole checkpoints, oldest first.
    fn archive_steps(&self, py: Python<'_>, place: Place) -> PyResult<Vec<u64>> {
        archive::steps(py, place)
    }

    /// Returns the content of the manifest of a checkpoint in an archive.
    fn archive_info(&self, py: Python<'_>, step: u64, place: Place) -> PyResult<String> {
        archive::info(py, place, step)
    }

    /// Waits until this process's part of all saves is on disk, and ends the writing thread.
    fn close(&self, py: Python<'_>) {
        if self.process == std::process::id() {
            let store = self.lock().take();
            py.detach(|| drop(store));
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // Only the parent has the thread that a drop would wait for.
            let _in_the_parent = ManuallyDrop::new(self.lock().take());
        }
    }
}

fn rules_of(text: &str) -> PyResult<Vec<Rule>> {
    let given: Vec<GivenRule> =
        serde_json::from_str(text).map_err(|why| refused(&format!("keep checkpoints: {why}")))?;
    let best = |metric, count, is_more_better| Rule::Best { metric, count, is_more_better };
    let rules = given.into_iter().map(|rule| match rule {
        GivenRule::EverySteps(steps) => Rule::EverySteps(steps),
        GivenRule::EveryHours(hours) => Rule::EveryHours(hours),
        GivenRule::Lowest(metric, count) => best(metric, count, false),
        GivenRule::Highest(metric, count) => best(metric, count, true),
        GivenRule::Steps(steps) => Rule::Pinned(steps.into_iter().map(Step).collect()),
    });
    Ok(rules.collect())
}

fn keep_of(keep: usize) -> PyResult<NonZeroUsize> {
    NonZeroUsize::new(keep).ok_or_else(|| refused("keep at least one checkpoint: keep is 0"))
}

/// Copies `sources` into `room`, one after the other, on several threads; returns where each begins, a multiple
/// of 64.
///
/// # Errors
/// `Refused` for a room that is too small, or memory that isn't contiguous.
#[pyfunction]
pub(crate) fn pack(
    py: Python<'_>,
    mut room: PyReadwriteArray1<'_, u8>,
    sources: Vec<PyReadonlyArray1<'_, u8>>,
) -> PyResult<Vec<usize>> {
    let not_flat = |_| refused("copy tensors: their memory is not contiguous");
    let sources = sources.iter().map(|source| source.as_slice().map_err(not_flat)).collect::<PyResult<Vec<_>>>()?;
    let room = room.as_slice_mut().map_err(not_flat)?;
    let packed = py.detach(|| gangline_storage::pack(room, &sources));
    packed.ok_or_else(|| refused("copy tensors: the room for them is too small"))
}

/// Returns words of each of `sources`, evenly spaced, and its last bytes: they tell most changes of it, at a cost
/// that doesn't grow with its length.
///
/// # Errors
/// `Refused` for memory that isn't contiguous.
#[pyfunction]
pub(crate) fn samples<'py>(
    py: Python<'py>,
    sources: Vec<PyReadonlyArray1<'py, u8>>,
) -> PyResult<Vec<Bound<'py, PyBytes>>> {
    let sampled = sources.iter().map(|source| {
        let bytes = source.as_slice().map_err(|_| refused("compare tensors: their memory is not contiguous"))?;
        Ok(PyBytes::new(py, &sample(bytes)))
    });
    sampled.collect()
}

/// Whole words, since a change may be of the exponents alone.
fn sample(bytes: &[u8]) -> Vec<u8> {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut sample: Vec<u8> = words.iter().step_by((words.len() / SAMPLES).max(1)).flatten().copied().collect();
    sample.extend_from_slice(words.last().map_or(&[][..], |word| word.as_slice()));
    sample.extend_from_slice(rest);
    sample
}
