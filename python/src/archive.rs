//! Checkpoints into an archive and back, for `Store::push` and `Store::pull`.

use std::collections::BTreeMap;
use std::num::{NonZeroU64, NonZeroUsize};

use gangline_storage::archive::{Archive, Error, Options};
use gangline_storage::{Step, Store};
use pyo3::prelude::*;
use serde::Serialize;

use crate::errors::{archive_exception, refused};

/// An archive from Python: `s3://bucket/prefix` or a folder; S3's settings, named as in the environment of AWS's own tools;
/// and the most bytes a second, none for as many as go.
pub(crate) type Place = (String, BTreeMap<String, String>, Option<u64>);

/// Puts a checkpoint into the archive; what that took, as JSON.
pub(crate) fn push(py: Python<'_>, store: &Store, place: Place, step: u64) -> PyResult<String> {
    told(py, place, |archive| archive.push(store, Step(step)))
}

/// Gets a checkpoint, or the newest, from the archive; what it was, as JSON.
pub(crate) fn pull(py: Python<'_>, store: &Store, place: Place, step: Option<u64>) -> PyResult<String> {
    told(py, place, |archive| archive.pull(step.map(Step), store))
}

fn told<T: Send + Serialize>(
    py: Python<'_>,
    place: Place,
    act: impl Send + FnOnce(&Archive) -> Result<T, Error>,
) -> PyResult<String> {
    let (address, s3, rate) = place;
    let none = || refused("reach the archive with no bytes a second: leave the limit out, or allow some");
    let rate = rate.map(|rate| NonZeroU64::new(rate).ok_or_else(none)).transpose()?;
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let options = Options { bytes_per_second_max: rate, s3, threads, ..Options::default() };
    let answer = py.detach(|| act(&Archive::open(&address, &options)?));
    let answer = answer.map_err(|error| archive_exception(&error))?;
    Ok(serde_json::to_string(&answer).expect("what the archive tells has string keys and plain values"))
}
