//! The batches of a rank: samples of the text or of a dataset in an order that any number of ranks goes on with, by
//! `gangline-data`.

use std::fs::File;
use std::io::Write as _;
use std::num::NonZeroU32;
use std::path::Path;

use gangline_data::order::{HeldOut, Part, Shuffle};
use gangline_data::{
    CACHE_VARIABLE, Cache, CacheOptions, Loader, Options, Room, Source, State, THREADS, TokenType, Width, is_remote,
};

use crate::args::{Args, Environment};
use crate::corpus::{Batch, Corpus};
use crate::error::Error;

/// What a checkpoint keeps of the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The loader's state, as JSON.
    pub(crate) state: String,
    /// Samples of a batch over all ranks.
    pub(crate) global_batch: u32,
}

/// The most bytes that the cache may take.
const LIMIT_VARIABLE: &str = "GANGLINE_DATA_CACHE_LIMIT";
/// Of a dataset's samples, one group in twenty is held out.
const HELD_OUT: HeldOut = HeldOut { one_in: nonzero(20), group: nonzero(16) };

const fn nonzero(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).expect("the arguments have no such zero")
}

/// The batches to train on.
pub(crate) struct Data {
    loader: Loader,
    context: u32,
    /// Where the samples of each step are noted, if anywhere.
    log: Option<File>,
    inputs: Vec<u8>,
    labels: Vec<u8>,
}

impl Data {
    /// At the first batch of what is trained on.
    pub(crate) fn open(corpus: &mut Corpus, args: &Args, environment: &Environment) -> Result<Data, Error> {
        let Environment { rank, world_size, .. } = *environment;
        let options = Options {
            global_batch: nonzero(args.global_batch.unwrap_or(args.batch.saturating_mul(world_size))),
            seed: args.seed,
            part: corpus.training_part().map(|part| (part, HELD_OUT)),
            rank,
            world_size: nonzero(world_size),
            ..options(args)
        };
        let log = args.sample_log.as_deref().map(|folder| open_log(folder, rank)).transpose()?;
        let loader = Loader::new(vec![corpus.take_training()], options)?;
        Ok(Data { loader, context: args.context, log, inputs: Vec::new(), labels: Vec::new() })
    }

    /// The first batches of the dataset's held-out samples.
    pub(crate) fn held_out(args: &Args, environment: &Environment, count: u64) -> Result<Vec<Batch>, Error> {
        let address = args.data.as_deref().expect("there is a dataset");
        let options = Options { part: Some((Part::HeldOut, HELD_OUT)), ..options(args) };
        let loader = Loader::new(vec![open(address, environment)?], options)?;
        let mut data = Data { loader, context: args.context, log: None, inputs: Vec::new(), labels: Vec::new() };
        (0..count).map(|number| data.next(number)).collect()
    }

    /// Goes on from a checkpoint with its global batch, unless another one is asked for or too small for the ranks.
    /// False if the checkpoint is of another text or order, or of an earlier version: then nothing is changed.
    pub(crate) fn resume(&mut self, place: &Place, is_batch_kept: bool) -> Result<bool, Error> {
        let state = State::from_json(&place.state);
        if state.is_err() || state.and_then(|state| self.loader.restore(&state)).is_err() {
            return Ok(false);
        }
        let kept = NonZeroU32::new(place.global_batch).filter(|kept| *kept >= self.loader.options().world_size);
        if let Some(kept) = kept.filter(|_| is_batch_kept) {
            self.loader.change_batch(kept)?;
        }
        Ok(true)
    }

    /// Leaves out batches.
    pub(crate) fn skip(&mut self, batches: u64) {
        self.loader.skip(batches);
    }

    /// This rank's rows of the next batch, which is the one of `step`.
    pub(crate) fn next(&mut self, step: u64) -> Result<Batch, Error> {
        let bytes = self.rows() * self.context as usize * TokenType::Uint32.bytes();
        self.inputs.resize(bytes, 0);
        self.labels.resize(bytes, 0);
        let (inputs, labels) = (&mut self.inputs, &mut self.labels);
        let mut room = Room { width: Width::Int32, inputs, labels, positions: &mut [] };
        self.loader.fill(&mut room)?;
        if let Some(log) = &mut self.log {
            let samples: Vec<u64> = self.loader.samples().iter().map(|sample| sample.number).collect();
            let line = serde_json::json!({ "step": step, "rank": self.loader.options().rank, "samples": samples });
            // In one write, so that a kill leaves whole lines.
            let written = log.write_all(format!("{line}\n").as_bytes());
            written.map_err(|source| Error::SampleLog { source })?;
        }
        let numbers = |bytes: &[u8]| bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        Ok(Batch { rows: self.rows(), inputs: numbers(&self.inputs), targets: numbers(&self.labels) })
    }

    /// Rows of this rank in a batch.
    pub(crate) fn rows(&self) -> usize {
        self.loader.rows().len()
    }

    /// Rows of all ranks in a batch.
    pub(crate) fn global_batch(&self) -> u32 {
        self.loader.options().global_batch.get()
    }

    /// What the mean over this rank's rows counts in the mean over the ranks.
    pub(crate) fn loss_weight(&self) -> f64 {
        self.loader.loss_weight()
    }

    /// What a checkpoint keeps.
    pub(crate) fn place(&self) -> Place {
        Place { state: self.loader.state().to_json(), global_batch: self.global_batch() }
    }
}

/// The options of a single rank that reads all samples.
fn options(args: &Args) -> Options {
    Options {
        sequence_length: nonzero(args.context),
        global_batch: nonzero(args.batch),
        seed: 0,
        shuffle: Shuffle::Global,
        part: None,
        stages: Vec::new(),
        blend: Vec::new(),
        epochs: None,
        rank: 0,
        world_size: nonzero(1),
        threads: nonzero(1),
        packs_documents: false,
    }
}

/// Opens a dataset; a remote one is fetched into this node's cache as it is read.
pub(crate) fn open(address: &Path, environment: &Environment) -> Result<Source, Error> {
    let data_type = Some(TokenType::Uint8);
    if !is_remote(address) {
        return Ok(Source::open(address, data_type)?);
    }
    let Environment { cache, variables, .. } = environment;
    let why = "a remote dataset needs a folder for its copy";
    let unset = || Error::Setting { name: CACHE_VARIABLE, value: String::new(), why };
    let root = cache.clone().ok_or_else(unset)?;
    let limit = variables.get(LIMIT_VARIABLE).map(|limit| limit.parse().map_err(|_| limit)).transpose();
    let why = "it is no number of bytes";
    let refused = |limit: &String| Error::Setting { name: LIMIT_VARIABLE, value: limit.clone(), why };
    let bytes_max = limit.map_err(refused)?;
    let options = CacheOptions { root, bytes_max, settings: variables.clone(), threads: nonzero(THREADS) };
    let found = Cache::open(options)?.find(&address.to_string_lossy())?;
    Ok(Source::open_fetched(found, data_type)?)
}

fn open_log(folder: &Path, rank: u32) -> Result<File, Error> {
    let opened = std::fs::create_dir_all(folder)
        .and_then(|()| File::options().create(true).append(true).open(folder.join(format!("rank-{rank}.jsonl"))));
    opened.map_err(|source| Error::SampleLog { source })
}
