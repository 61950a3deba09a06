//! The order of records that aren't tokens, which Python reads: which ones a rank's batch has. And the cache that they are read from.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gangline_data::{Cache, CacheOptions, Cursor, Error, State, THREADS, unpacked};
use pyo3::prelude::*;

use crate::errors::{data_exception, refused};
use crate::tokens::options_of;

/// Goes through the records of sources, a global batch at a time.
#[pyclass(frozen, module = "gangline._native")]
pub(crate) struct Records {
    inner: Mutex<Cursor>,
}

impl Records {
    fn lock(&self) -> MutexGuard<'_, Cursor> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Records {
    /// Begins at the first batch. `counts` are the records of each source, `id` tells the sources from others, `options` are
    /// those of `Tokens` as JSON.
    ///
    /// # Errors
    /// `Refused` naming the option.
    #[new]
    fn new(counts: Vec<u64>, id: [u8; 16], options: &str) -> PyResult<Self> {
        let given =
            serde_json::from_str(options).map_err(|why| refused(&format!("read rows with these options: {why}")))?;
        let cursor = Cursor::new(options_of(given), &counts, id).map_err(|error| data_exception(&error))?;
        Ok(Records { inner: Mutex::new(cursor) })
    }

    /// Returns the source, the epoch and the number of each record of this rank in the next batch, and moves on.
    fn next(&self) -> Vec<(usize, u64, u64)> {
        let mut cursor = self.lock();
        let samples = cursor.peek(cursor.rows());
        cursor.advance();
        samples.into_iter().map(|sample| (sample.source, sample.epoch, sample.number)).collect()
    }

    /// Returns what this rank multiplies its mean loss with.
    fn loss_weight(&self) -> f64 {
        self.lock().loss_weight()
    }

    /// Returns the records of each source in the part that is read.
    fn counts(&self) -> Vec<u64> {
        self.lock().counts().to_vec()
    }

    /// Returns the batches of the current pass, and those that are left of it; None without an end.
    fn batches(&self) -> Option<(u64, u64)> {
        self.lock().batches()
    }

    /// Returns the batches given so far.
    fn steps(&self) -> u64 {
        self.lock().steps()
    }

    /// Leaves out the next batches.
    fn skip(&self, batches: u64) {
        self.lock().skip(batches);
    }

    /// Returns the state as JSON.
    fn state(&self) -> String {
        self.lock().state().to_json()
    }

    /// Refuses a state of other data or another order; with `is_taken`, goes on from it.
    ///
    /// # Errors
    /// `Refused`, saying what differs.
    fn restore(&self, state: &str, is_taken: bool) -> PyResult<()> {
        let state = State::from_json(state).map_err(|error| data_exception(&error))?;
        let mut cursor = self.lock();
        let restored = if is_taken { cursor.restore(&state) } else { cursor.check_state(&state) };
        restored.map_err(|error| data_exception(&error))
    }
}

/// A cache: its folder, the most bytes of it, and settings for S3.
pub(crate) type GivenCache = (PathBuf, Option<u64>, BTreeMap<String, String>);

/// A dataset in the cache, which stays there as long as this lives.
#[pyclass(frozen, module = "gangline._native")]
pub(crate) struct Fetched {
    inner: gangline_data::Fetched,
}

#[pymethods]
impl Fetched {
    /// Returns the folder of its files, or its only file.
    fn path(&self) -> PathBuf {
        self.inner.path().to_owned()
    }
}

/// Brings the dataset at an address into the cache, unless it is there, and compares all of it with its checksums.
///
/// # Errors
/// `NotFound`, `Unreachable`, `Changed`, `Corrupt`, or `Refused` if it doesn't fit the cache.
#[pyfunction]
pub(crate) fn fetch(py: Python<'_>, url: &str, cache: GivenCache) -> PyResult<Fetched> {
    let verified = py.detach(|| {
        let inner = open_cache(&cache)?.fetch(url, &|_, _| {})?;
        inner.verify().map(|()| Fetched { inner })
    });
    verified.map_err(|error| data_exception(&error))
}

/// Opens a cache as Python gives it.
pub(crate) fn open_cache(cache: &GivenCache) -> Result<Cache, Error> {
    let (root, bytes_max, settings) = cache.clone();
    let threads = NonZeroU32::new(THREADS).expect("it isn't zero");
    Cache::open(CacheOptions { root, bytes_max, settings, threads })
}

/// Returns what a file that is compressed by gzip or zstd holds, as a file below a folder.
///
/// # Errors
/// `NotFound`, `Corrupt` naming file and place, or `IoFailed`.
#[pyfunction]
#[pyo3(name = "unpacked")]
pub(crate) fn unpacked_file(py: Python<'_>, path: PathBuf, folder: PathBuf) -> PyResult<PathBuf> {
    py.detach(|| unpacked(&path, &folder)).map_err(|error| data_exception(&error))
}
