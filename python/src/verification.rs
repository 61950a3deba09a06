//! A background check of loaded tensors, as a handle whose outcome can be queried any number of times.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use gangline_storage::Error;
use pyo3::prelude::*;

use crate::errors::exception;
use crate::pending::wait_until;

/// A check of tensors that were returned unchecked.
#[pyclass(frozen, module = "gangline._native")]
pub(crate) struct Verification {
    state: Mutex<State>,
}

enum State {
    UnderWay(gangline_storage::Verification),
    Ended(Result<(), Error>),
}

impl Verification {
    pub(crate) fn new(verification: gangline_storage::Verification) -> Self {
        Verification { state: Mutex::new(State::UnderWay(verification)) }
    }

    /// Waits up to `wait`; returns true if the check has ended by then.
    fn has_ended(&self, wait: Duration) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State::UnderWay(verification) = &*state else { return true };
        let Some(outcome) = verification.wait_at_most(wait) else { return false };
        *state = State::Ended(outcome);
        true
    }
}

#[pymethods]
impl Verification {
    /// Waits until every byte has been compared; returns false if `seconds` passed first.
    ///
    /// # Errors
    /// `Corrupt` naming the file and tensor, on every call; `IoFailed`; `KeyboardInterrupt`.
    #[pyo3(signature = (seconds=None))]
    fn wait(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<bool> {
        if !wait_until(py, seconds, |wait| self.has_ended(wait))? {
            return Ok(false);
        }
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Ended(Ok(())) => Ok(true),
            State::Ended(Err(error)) => Err(exception(error)),
            State::UnderWay(_) => Err(exception(&Error::Closed)),
        }
    }
}
