//! Checkpoints into an archive and back, for `Store::push` and `Store::pull`.

use std::collections::BTreeMap;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

use gangline_storage::archive::{Archive, Error, Listed, Options, Pushed, WrappingKey};
use gangline_storage::{Step, Store, Tier};
use pyo3::prelude::*;
use serde::Serialize;

use crate::errors::{archive_exception, refused};

/// An archive from Python: `s3://bucket/prefix` or a folder; S3's settings, named as in the environment of AWS's own tools;
/// the most bytes a second, none for as many as go; and the file of its key, none for one that isn't encrypted.
pub(crate) type Place = (String, BTreeMap<String, String>, Option<u64>, Option<PathBuf>);

/// The archive that a store is to push to by itself.
pub(crate) fn tier((address, s3, rate, key_file): Place) -> PyResult<Tier> {
    let none = || refused("reach the archive with no bytes a second: leave the limit out, or allow some");
    let rate = rate.map(|rate| NonZeroU64::new(rate).ok_or_else(none)).transpose()?;
    let key = key_file.map(|path| WrappingKey::from_file(&path)).transpose();
    let key = key.map_err(|error| archive_exception(&error.into()))?;
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let options = Options { bytes_per_second_max: rate, s3, threads, key, ..Options::default() };
    Ok(Tier { address, options })
}

/// What became of a push in the background, as JSON.
pub(crate) fn archived(outcome: Option<Result<Pushed, Error>>) -> PyResult<Option<String>> {
    outcome.transpose().map(|pushed| pushed.as_ref().map(json)).map_err(|error| archive_exception(&error))
}

/// Puts a checkpoint into the archive; what that took, as JSON.
pub(crate) fn push(py: Python<'_>, store: &Store, place: Place, step: u64) -> PyResult<String> {
    told(py, place, |archive| archive.push(store, Step(step)))
}

/// Gets a checkpoint, or the newest, from the archive; what it was, as JSON.
pub(crate) fn pull(py: Python<'_>, store: &Store, place: Place, step: Option<u64>) -> PyResult<String> {
    told(py, place, |archive| archive.pull(step.map(Step), store))
}

/// Gets the newest checkpoint of the archive, if it was saved after the store's.
pub(crate) fn pull_newer(py: Python<'_>, store: &Store, place: Place) -> PyResult<()> {
    asked(py, place, |archive| archive.pull_newer(store)).map(drop)
}

/// The steps of the checkpoints that training can go on from.
pub(crate) fn steps(py: Python<'_>, place: Place) -> PyResult<Vec<u64>> {
    let listed = asked(py, place, Archive::list)?;
    let is_whole = |one: &Listed| one.catalog.as_ref().is_ok_and(|archived| archived.milestone.is_none());
    Ok(listed.into_iter().filter(is_whole).map(|one| one.step.0).collect())
}

/// What a checkpoint's manifest says, as JSON.
pub(crate) fn info(py: Python<'_>, place: Place, step: u64) -> PyResult<String> {
    told(py, place, |archive| archive.info(Some(Step(step))))
}

fn told<T: Send + Serialize>(
    py: Python<'_>,
    place: Place,
    act: impl Send + FnOnce(&Archive) -> Result<T, Error>,
) -> PyResult<String> {
    asked(py, place, act).map(|answer| json(&answer))
}

/// Asks the archive something, with the GIL released.
fn asked<T: Send>(py: Python<'_>, place: Place, act: impl Send + FnOnce(&Archive) -> Result<T, Error>) -> PyResult<T> {
    let Tier { address, options } = tier(place)?;
    py.detach(|| act(&Archive::open(&address, &options)?)).map_err(|error| archive_exception(&error))
}

fn json(answer: &impl Serialize) -> String {
    serde_json::to_string(answer).expect("what the archive tells has string keys and plain values")
}
