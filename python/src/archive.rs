//! Pushes checkpoints to an archive and pulls them back, for `Store::push` and `Store::pull`.

use std::collections::BTreeMap;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

use gangline_storage::archive::{Archive, Error, Listed, Options, Pushed, WrappingKey};
use gangline_storage::{Step, Store, Tier};
use pyo3::prelude::*;
use serde::Serialize;

use crate::errors::{archive_exception, refused};

/// An archive from Python: `s3://bucket/prefix` or a folder; S3's settings, named as in the environment of
/// AWS's own tools; the most bytes per second, none for no limit; and the file of its key, none if it isn't
/// encrypted.
pub(crate) type Place = (String, BTreeMap<String, String>, Option<u64>, Option<PathBuf>);

/// Returns the archive that a store pushes to in the background.
pub(crate) fn tier((address, s3, rate, key_file): Place) -> PyResult<Tier> {
    let none = || refused("reach the archive with no bytes a second: leave the limit out, or allow some");
    let rate = rate.map(|rate| NonZeroU64::new(rate).ok_or_else(none)).transpose()?;
    let key = key_file.map(|path| WrappingKey::from_file(&path)).transpose();
    let key = key.map_err(|error| archive_exception(&error.into()))?;
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let options = Options { bytes_per_second_max: rate, s3, threads, key, ..Options::default() };
    Ok(Tier { address, options })
}

/// Returns the outcome of a background push, as JSON.
pub(crate) fn archived(outcome: Option<Result<Pushed, Error>>) -> PyResult<Option<String>> {
    outcome.transpose().map(|pushed| pushed.as_ref().map(json)).map_err(|error| archive_exception(&error))
}

/// Puts a checkpoint into the archive; returns the result as JSON.
pub(crate) fn push(py: Python<'_>, store: &Store, place: Place, step: u64) -> PyResult<String> {
    told(py, place, |archive| archive.push(store, Step(step)))
}

/// Fetches a checkpoint, or the newest, from the archive; returns the result as JSON.
pub(crate) fn pull(py: Python<'_>, store: &Store, place: Place, step: Option<u64>) -> PyResult<String> {
    told(py, place, |archive| archive.pull(step.map(Step), store))
}

/// Fetches the newest checkpoint of the archive, if it was saved after the store's.
pub(crate) fn pull_newer(py: Python<'_>, store: &Store, place: Place) -> PyResult<()> {
    asked(py, place, |archive| archive.pull_newer(store)).map(drop)
}

/// Returns the steps of the checkpoints from which training can resume.
pub(crate) fn steps(py: Python<'_>, place: Place) -> PyResult<Vec<u64>> {
    let listed = asked(py, place, Archive::list)?;
    let is_whole = |one: &Listed| one.catalog.as_ref().is_ok_and(|archived| archived.milestone.is_none());
    Ok(listed.into_iter().filter(is_whole).map(|one| one.step.0).collect())
}

/// Returns the content of a checkpoint's manifest, as JSON.
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

/// Opens the archive and calls `act`, with the GIL released.
fn asked<T: Send>(py: Python<'_>, place: Place, act: impl Send + FnOnce(&Archive) -> Result<T, Error>) -> PyResult<T> {
    let Tier { address, options } = tier(place)?;
    py.detach(|| act(&Archive::open(&address, &options)?)).map_err(|error| archive_exception(&error))
}

fn json(answer: &impl Serialize) -> String {
    serde_json::to_string(answer).expect("what the archive tells has string keys and plain values")
}
