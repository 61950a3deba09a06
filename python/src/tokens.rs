//! The loader of token datasets: fills batches in numpy's memory, without the GIL.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gangline_data::order::{HeldOut, Megatron, Part, Shuffle, Stage};
use gangline_data::{
    Loader, Options, Room, Source, State, TokenType, Width, is_remote, position_bytes, unpacked_folder,
};
use numpy::PyReadwriteArray1;
use pyo3::prelude::*;
use serde::Deserialize;

use crate::errors::{data_exception, refused};
use crate::records::{GivenCache, open_cache};

/// The loader's options, as Python writes them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Given {
    sequence_length: NonZeroU32,
    global_batch: NonZeroU32,
    seed: u64,
    shuffle: GivenShuffle,
    /// One group in so many is held out, and the samples of a group.
    held_out: Option<(NonZeroU32, NonZeroU32)>,
    is_held_out: bool,
    /// The first position of each stage, and its weights.
    stages: Vec<(u64, Vec<u64>)>,
    /// The weights of a blend in Megatron-Core's order.
    blend: Vec<f64>,
    epochs: Option<u64>,
    rank: u32,
    world_size: NonZeroU32,
    threads: NonZeroU32,
    packs_documents: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum GivenShuffle {
    None,
    Global,
    Blocks,
    /// Which part of the documents, from one share of them to another, the samples of the run, and the surplus of a blend.
    Megatron(f64, f64, Option<u64>, f64),
}

/// Memory for labels, and for the tokens' positions in their documents, from Python.
type Beside<'py> = (Option<PyReadwriteArray1<'py, u8>>, Option<PyReadwriteArray1<'py, u8>>);

/// The batches of a rank.
#[pyclass(frozen, module = "gangline._native")]
pub(crate) struct Tokens {
    inner: Mutex<Loader>,
}

impl Tokens {
    fn lock(&self) -> MutexGuard<'_, Loader> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Tokens {
    /// Opens the sources: a path or an address each, and numpy's name of its type for raw tokens. `options` are JSON; `cache` is
    /// where remote ones are fetched to (see `fetch`).
    ///
    /// # Errors
    /// `NotFound`, `Corrupt` naming file and place, or `Refused` naming the option.
    #[new]
    fn new(
        py: Python<'_>,
        sources: Vec<(PathBuf, Option<String>)>,
        options: &str,
        cache: GivenCache,
    ) -> PyResult<Self> {
        let given: Given =
            serde_json::from_str(options).map_err(|why| refused(&format!("read tokens with these options: {why}")))?;
        let open = |(path, name): (PathBuf, Option<String>)| {
            let unknown = || refused(&format!("read {}: no tokens are of type {name:?}", path.display()));
            let data_type = name.as_deref().map(|name| TokenType::of_name(name).ok_or_else(unknown)).transpose()?;
            let opened = py.detach(|| match path.to_str().filter(|_| is_remote(&path)) {
                Some(url) => Source::open_fetched(open_cache(&cache)?.find(url)?, data_type),
                None => Source::open_unpacking(&path, data_type, &unpacked_folder(&cache.0)),
            });
            opened.map_err(|error| data_exception(&error))
        };
        let sources = sources.into_iter().map(open).collect::<PyResult<Vec<Source>>>()?;
        let options = options_of(given);
        let loader = py.detach(|| Loader::new(sources, options)).map_err(|error| data_exception(&error))?;
        Ok(Tokens { inner: Mutex::new(loader) })
    }

    /// Fills the rows of this rank in the next global batch: the inputs, and the labels and the positions in
    /// their documents if there is room for them.
    ///
    /// # Errors
    /// `Changed` or `Corrupt` naming the file, `Refused` for a token that doesn't fit.
    #[pyo3(signature = (width, inputs, beside=(None, None)))]
    fn fill(
        &self,
        py: Python<'_>,
        width: &str,
        mut inputs: PyReadwriteArray1<'_, u8>,
        beside: Beside<'_>,
    ) -> PyResult<()> {
        let (mut labels, mut positions) = beside;
        let width = match width {
            "int64" => Width::Int64,
            "int32" => Width::Int32,
            "stored" => Width::Stored,
            other => return Err(refused(&format!("fill a batch with {other:?}"))),
        };
        let not_flat = |_| refused("fill a batch: its memory is not contiguous");
        let inputs = inputs.as_slice_mut().map_err(not_flat)?;
        let labels = match &mut labels {
            Some(labels) => labels.as_slice_mut().map_err(not_flat)?,
            None => &mut [],
        };
        let positions = match &mut positions {
            Some(positions) => positions.as_slice_mut().map_err(not_flat)?,
            None => &mut [],
        };
        py.detach(|| {
            let mut loader = self.lock();
            let tokens = loader.rows().len() * loader.options().sequence_length.get() as usize;
            let bytes = tokens * loader.data_type().bytes_as(width);
            let is_none_or = |room: &[u8], bytes: usize| room.is_empty() || room.len() == bytes;
            let has_room = is_none_or(labels, bytes) && is_none_or(positions, tokens * position_bytes(width));
            if inputs.len() != bytes || !has_room {
                return Err(refused(&format!("fill a batch: it has {bytes} bytes, and the memory {}", inputs.len())));
            }
            loader.fill(&mut Room { width, inputs, labels, positions }).map_err(|error| data_exception(&error))
        })
    }

    /// Returns whether all that the next batch needs is on this node.
    fn is_here(&self, py: Python<'_>) -> bool {
        py.detach(|| self.lock().is_here())
    }

    /// Returns the rows of this rank in a batch, and the type of the tokens.
    fn shape(&self) -> (usize, &'static str) {
        let loader = self.lock();
        (loader.rows().len(), loader.data_type().name())
    }

    /// Returns what this rank multiplies its mean loss with; of packed documents, for the last batch.
    fn loss_weight(&self) -> f64 {
        self.lock().loss_weight()
    }

    /// Returns where the parts of documents begin and end in this rank's rows of the last batch; empty unless
    /// they are packed.
    fn boundaries(&self) -> Vec<u64> {
        self.lock().boundaries()
    }

    /// Returns the tokens and the samples of each source.
    fn sizes(&self) -> Vec<(u64, u64)> {
        let loader = self.lock();
        loader.sources().iter().enumerate().map(|(at, source)| (source.tokens(), loader.samples_of(at))).collect()
    }

    /// Returns the id of each source as hexadecimal digits, and whether it is made of every byte.
    fn ids(&self) -> Vec<(String, bool)> {
        let hex = |id: [u8; 16]| id.iter().map(|byte| format!("{byte:02x}")).collect();
        self.lock().sources().iter().map(|source| (hex(source.id()), source.is_id_of_every_byte())).collect()
    }

    /// Returns the batches of the current pass, and those that are left of it; None without an end.
    fn batches(&self) -> Option<(u64, u64)> {
        self.lock().batches()
    }

    /// Returns the batches given so far.
    fn steps(&self) -> u64 {
        self.lock().steps()
    }

    /// Returns the source, the epoch and the number of each sample of the last batch's rows.
    fn samples(&self) -> Vec<(usize, u64, u64)> {
        self.lock().samples().iter().map(|sample| (sample.source, sample.epoch, sample.number)).collect()
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
        let mut loader = self.lock();
        let restored = if is_taken { loader.restore(&state) } else { loader.check_state(&state) };
        restored.map_err(|error| data_exception(&error))
    }
}

/// Returns the options.
pub(crate) fn options_of(given: Given) -> Options {
    let part = if given.is_held_out { Part::HeldOut } else { Part::Training };
    let stages = given.stages.into_iter().map(|(from, weights)| Stage { from, weights }).collect();
    Options {
        sequence_length: given.sequence_length,
        global_batch: given.global_batch,
        seed: given.seed,
        shuffle: match given.shuffle {
            GivenShuffle::None => Shuffle::None,
            GivenShuffle::Global => Shuffle::Global,
            GivenShuffle::Blocks => Shuffle::default(),
            GivenShuffle::Megatron(begin, end, samples, surplus) => {
                Shuffle::Megatron(Megatron { begin, end, samples, surplus })
            }
        },
        part: given.held_out.map(|(one_in, group)| (part, HeldOut { one_in, group })),
        stages,
        blend: given.blend,
        epochs: given.epochs,
        rank: given.rank,
        world_size: given.world_size,
        threads: given.threads,
        packs_documents: given.packs_documents,
    }
}
