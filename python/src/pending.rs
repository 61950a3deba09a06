//! A save in flight, as a handle whose outcome can be queried any number of times.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use gangline_storage::{Began, Confirmation};
use pyo3::prelude::*;
use serde::Serialize;

use crate::errors::exception;

/// How often a wait checks for Ctrl-C.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// A save that is copied and being written to disk.
#[pyclass(frozen, module = "gangline._native")]
pub(crate) struct Pending {
    state: Mutex<State>,
    /// None if nothing is to be confirmed, or it has been.
    confirmation: Mutex<Option<Confirmation>>,
}

enum State {
    UnderWay(gangline_storage::Pending),
    Ended(Result<String, gangline_storage::Error>),
}

/// A durable checkpoint, as JSON.
#[derive(Serialize)]
struct Saved {
    step: u64,
    bytes: u64,
    content_hash: String,
    branch: String,
    began: Option<Began>,
    removed: Vec<u64>,
    retention_error: Option<String>,
}

impl From<gangline_storage::Saved> for Saved {
    fn from(saved: gangline_storage::Saved) -> Self {
        let (removed, retention_error) = match saved.retention {
            Ok(pruned) => (pruned.removed.iter().map(|step| step.0).collect(), None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let (step, bytes) = (saved.step.0, saved.bytes.0);
        let (content_hash, branch) = (saved.content_hash.to_string(), saved.branch.to_string());
        Saved { step, bytes, content_hash, branch, began: saved.began, removed, retention_error }
    }
}

impl Pending {
    pub(crate) fn new(pending: gangline_storage::Pending) -> Self {
        Pending { state: Mutex::new(State::UnderWay(pending)), confirmation: Mutex::default() }
    }

    pub(crate) fn unconfirmed((pending, confirmation): (gangline_storage::Pending, Confirmation)) -> Self {
        Pending { confirmation: Mutex::new(Some(confirmation)), ..Pending::new(pending) }
    }

    /// Waits up to `wait`; returns true if the save has ended by then.
    fn has_ended(&self, wait: Duration) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State::UnderWay(pending) = &*state else { return true };
        let Some(outcome) = pending.wait_at_most(wait) else { return false };
        let told = |saved| serde_json::to_string(&Saved::from(saved)).expect("a plain struct has a JSON form");
        *state = State::Ended(outcome.map(told));
        true
    }
}

#[pymethods]
impl Pending {
    /// Reports whether the save has ended, well or not.
    fn done(&self, py: Python<'_>) -> bool {
        py.detach(|| self.has_ended(Duration::ZERO))
    }

    /// Lets the save become visible, or fails it, naming what has changed. Only the first call has an effect.
    fn confirm(&self, changed: Option<&str>) {
        let confirmation = self.confirmation.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (confirmation, changed) {
            (Some(confirmation), None) => confirmation.confirm(),
            (Some(confirmation), Some(what)) => confirmation.refuse(what),
            (None, _) => {}
        }
    }

    /// Waits for the save; returns the outcome as JSON, or none if `seconds` passed first.
    ///
    /// # Errors
    /// The store's error as an exception, on every call; `KeyboardInterrupt`.
    #[pyo3(signature = (seconds=None))]
    fn wait(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<Option<String>> {
        if wait_until(py, seconds, |wait| self.has_ended(wait))? { self.outcome().map(Some) } else { Ok(None) }
    }
}

impl Pending {
    fn outcome(&self) -> PyResult<String> {
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Ended(Ok(saved)) => Ok(saved.clone()),
            State::Ended(Err(error)) => Err(exception(error)),
            State::UnderWay(_) => Err(exception(&gangline_storage::Error::Closed)),
        }
    }
}

/// Waits until `has_ended` returns true, up to a number of seconds if given; returns whether it did. Each
/// call of `has_ended` gets the longest time that it may wait.
///
/// # Errors
/// `KeyboardInterrupt`.
pub(crate) fn wait_until(
    py: Python<'_>,
    seconds: Option<f64>,
    has_ended: impl Fn(Duration) -> bool + Sync,
) -> PyResult<bool> {
    let started = Instant::now();
    let limit = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok());
    loop {
        let left = limit.map_or(SIGNAL_INTERVAL, |limit| limit.saturating_sub(started.elapsed()));
        if py.detach(|| has_ended(left.min(SIGNAL_INTERVAL))) {
            return Ok(true);
        }
        if limit.is_some_and(|limit| started.elapsed() >= limit) {
            return Ok(false);
        }
        py.check_signals()?;
    }
}
