//! The loader: global batches of a rank, filled from the sources. All that it is between two batches is [`State`], which is
//! the same on all ranks.

use std::num::NonZeroU32;
use std::ops::Range;

use crate::error::Error;
use crate::order::{HeldOut, Mixture, Order, Part, Shuffle, Split, Stage, loss_weight, rows_of};
use crate::source::Source;
use crate::state::{STATE_VERSION, State};
use crate::token_type::{TokenType, Width};

/// The most tokens of a sequence.
pub const SEQUENCE_MAX: u32 = 1 << 24;
/// The most threads that fill a batch.
pub const THREADS_MAX: u32 = 64;
/// Fewer rows than this aren't worth a thread.
const ROWS_OF_A_THREAD: usize = 16;

/// How batches are made.
#[derive(Clone, Debug)]
pub struct Options {
    /// Tokens of a sample's inputs, and of its labels.
    pub sequence_length: NonZeroU32,
    /// Samples of a batch over all ranks.
    pub global_batch: NonZeroU32,
    /// Chooses the order.
    pub seed: u64,
    /// How samples are shuffled.
    pub shuffle: Shuffle,
    /// Which part of the samples is read; all of them without a rule.
    pub part: Option<(Part, HeldOut)>,
    /// How sources are mixed; they count alike in proportion to their samples if there are no stages.
    pub stages: Vec<Stage>,
    /// How often all samples are read; without end if none. Only for a single source.
    pub epochs: Option<u64>,
    /// This rank.
    pub rank: u32,
    /// The number of ranks.
    pub world_size: NonZeroU32,
    /// Threads that fill a batch.
    pub threads: NonZeroU32,
}

/// One sample of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The number of its source.
    pub source: usize,
    /// How often the source was read through before.
    pub epoch: u64,
    /// Its number in the source: its tokens begin at this times the sequence length.
    pub number: u64,
}

/// Room for the rows of a rank, one after the other.
#[derive(Debug)]
pub struct Room<'a> {
    /// How each token is given.
    pub width: Width,
    /// For the tokens of each sample.
    pub inputs: &'a mut [u8],
    /// For the tokens that follow each; empty if they aren't wanted.
    pub labels: &'a mut [u8],
}

/// Makes the batches of a rank.
#[derive(Debug)]
pub struct Loader {
    sources: Vec<Source>,
    options: Options,
    split: Split,
    mixture: Mixture,
    data: [u8; 16],
    steps: u64,
    position: u64,
    /// The samples of this rank's rows of the last batch.
    samples: Vec<Sample>,
}

impl Loader {
    /// A loader at the first batch.
    ///
    /// # Errors
    /// When an option makes no sense, or a source has no sample.
    pub fn new(sources: Vec<Source>, options: Options) -> Result<Loader, Error> {
        check(&sources, &options)?;
        let split = options.part.map_or(Split::Whole, |(part, rule)| Split::Of(part, rule));
        let counts: Vec<u64> = sources.iter().map(|source| split.count(samples_of(source, &options))).collect();
        if let Some((source, _)) = sources.iter().zip(&counts).find(|(_, count)| **count == 0) {
            let problem = format!(
                "{} has {} tokens, too few for a sample of {} and its labels in this part of the data",
                source.path().display(),
                source.tokens(),
                options.sequence_length
            );
            return Err(Error::refused("sequence_length", problem));
        }
        let stages = match (options.stages.as_slice(), counts.len()) {
            ([], 1) => vec![Stage { from: 0, weights: vec![1] }],
            ([], _) => vec![Stage { from: 0, weights: scaled(&counts) }],
            (stages, _) => stages.to_vec(),
        };
        let mixture = Mixture::new(sources.len(), &stages)?;
        let data = data_id(&sources);
        Ok(Loader { sources, options, split, mixture, data, steps: 0, position: 0, samples: Vec::new() })
    }

    /// Samples of a source in the part that is read.
    #[must_use]
    pub fn samples_of(&self, source: usize) -> u64 {
        self.split.count(samples_of(&self.sources[source], &self.options))
    }

    /// The sources.
    #[must_use]
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// What it was made with.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Batches given so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The batches that begin in the current pass over all epochs, and how many of them are left; none if there is no end. The
    /// last one is filled up with the first samples of the next pass, which goes on behind it: nothing is lost or repeated.
    #[must_use]
    pub fn batches(&self) -> Option<(u64, u64)> {
        let samples = self.samples_of(0).saturating_mul(self.options.epochs?);
        let batch = u64::from(self.options.global_batch.get());
        let pass = self.position / samples;
        let first_behind = |pass: u64| pass.saturating_mul(samples).div_ceil(batch);
        let left = (samples - self.position % samples).div_ceil(batch);
        Some((first_behind(pass + 1) - first_behind(pass), left))
    }

    /// The rows of this rank in a global batch.
    #[must_use]
    pub fn rows(&self) -> Range<u32> {
        rows_of(self.options.global_batch.get(), self.options.rank, self.options.world_size.get())
    }

    /// See [`loss_weight`].
    #[must_use]
    pub fn loss_weight(&self) -> f64 {
        loss_weight(self.options.global_batch.get(), self.options.rank, self.options.world_size.get())
    }

    /// The samples of this rank's rows of the last batch.
    #[must_use]
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// The samples of a range of positions in the order.
    pub fn samples_at(&self, positions: Range<u64>) -> Vec<Sample> {
        let mut orders: Vec<Option<(u64, Order)>> = vec![None; self.sources.len()];
        let sample = |position| {
            let place = self.mixture.place(position);
            let count = self.samples_of(place.source);
            let (epoch, index) = (place.index / count, place.index % count);
            let slot = &mut orders[place.source];
            if slot.as_ref().is_none_or(|(known, _)| *known != epoch) {
                // Each source has an order of its own.
                let seed = self.options.seed.wrapping_add((place.source as u64) << 32);
                *slot = Some((epoch, Order::new(count, self.options.shuffle, seed, epoch)));
            }
            let (_, order) = slot.as_ref().expect("it was just made");
            Sample { source: place.source, epoch, number: self.split.sample(order.sample(index)) }
        };
        positions.map(sample).collect()
    }

    /// Fills this rank's rows of the next global batch, and moves on. After an error it is where it was.
    ///
    /// # Errors
    /// When a file was changed or damaged, or a token doesn't fit the width.
    ///
    /// # Panics
    /// If the room has another size than the rows.
    pub fn fill(&mut self, room: &mut Room<'_>) -> Result<(), Error> {
        let rows = self.rows();
        let first = self.position;
        let samples = self.samples_at(first + u64::from(rows.start)..first + u64::from(rows.end));
        self.check_files(&samples)?;
        self.copy(&samples, room)?;
        self.samples = samples;
        self.position = first + u64::from(self.options.global_batch.get());
        self.steps += 1;
        Ok(())
    }

    /// Changes the number of samples of a batch, from the next one on; no sample is lost or repeated.
    ///
    /// # Errors
    /// When it is smaller than the number of ranks.
    pub fn change_batch(&mut self, global_batch: NonZeroU32) -> Result<(), Error> {
        check_batch(global_batch, self.options.world_size)?;
        self.options.global_batch = global_batch;
        Ok(())
    }

    /// Leaves out the next global batches.
    pub fn skip(&mut self, batches: u64) {
        let samples = batches.saturating_mul(u64::from(self.options.global_batch.get()));
        self.position = self.position.saturating_add(samples);
    }

    /// All that is needed to go on from here, at any number of ranks.
    #[must_use]
    pub fn state(&self) -> State {
        State {
            version: STATE_VERSION,
            data: hex(&self.data),
            order: self.order_id(self.position),
            sequence_length: self.options.sequence_length.get(),
            steps: self.steps,
            sample: self.position,
        }
    }

    /// Goes on from a state. The global batch may be another one.
    ///
    /// # Errors
    /// When the state is of other data or another order; nothing is changed then.
    pub fn restore(&mut self, state: &State) -> Result<(), Error> {
        self.check_state(state)?;
        (self.steps, self.position) = (state.steps, state.sample);
        self.samples.clear();
        Ok(())
    }

    /// Refuses a state of other data or another order.
    ///
    /// # Errors
    /// Says what differs.
    pub fn check_state(&self, state: &State) -> Result<(), Error> {
        state.check_version()?;
        let other = |problem: String| Err(Error::OtherState { problem });
        if state.sequence_length != self.options.sequence_length.get() {
            let mine = self.options.sequence_length;
            return other(format!("the checkpoint's samples have {} tokens, and these {mine}", state.sequence_length));
        }
        if state.data != hex(&self.data) {
            return other("the checkpoint is of other data: files were added, removed or changed".to_owned());
        }
        if state.order != self.order_id(state.sample) {
            let problem = "the checkpoint is of another order: use its seed, shuffle, part, and weights up to its step";
            return other(problem.to_owned());
        }
        Ok(())
    }

    /// What the order before a position depends on, in 16 digits.
    fn order_id(&self, position: u64) -> String {
        let Options { seed, shuffle, part, .. } = &self.options;
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("{} {seed} {shuffle:?} {part:?}", crate::order::ORDER_VERSION).as_bytes());
        for stage in self.mixture.past(position) {
            hasher.update(format!(" {} {:?}", stage.from, stage.weights).as_bytes());
        }
        hex(&hasher.finalize().as_bytes()[..8])
    }

    fn tokens(&self, sample: &Sample) -> Range<u64> {
        let length = u64::from(self.options.sequence_length.get());
        let start = sample.number * length;
        start..start + length + 1
    }

    fn check_files(&self, samples: &[Sample]) -> Result<(), Error> {
        let mut checked = vec![Vec::new(); self.sources.len()];
        samples.iter().try_for_each(|sample| {
            self.sources[sample.source].check_files(&self.tokens(sample), &mut checked[sample.source])
        })
    }

    fn copy(&self, samples: &[Sample], room: &mut Room<'_>) -> Result<(), Error> {
        let length = usize::try_from(self.options.sequence_length.get()).expect("32 bits fit");
        let row = length * self.sources[0].data_type().bytes_as(room.width);
        assert_eq!(room.inputs.len(), samples.len() * row, "room for the rows' inputs");
        assert!(room.labels.is_empty() || room.labels.len() == room.inputs.len(), "room for the rows' labels");
        let threads = usize::try_from(self.options.threads.get()).expect("32 bits fit");
        let threads = threads.min(samples.len() / ROWS_OF_A_THREAD).max(1);
        let each = samples.len().div_ceil(threads).max(1);
        if threads == 1 {
            return self.copy_rows(samples, row, (room.width, room.inputs, room.labels));
        }
        let has_labels = !room.labels.is_empty();
        let mut labels = room.labels.chunks_mut(each * row);
        let parts = samples.chunks(each).zip(room.inputs.chunks_mut(each * row));
        let width = room.width;
        std::thread::scope(|scope| {
            let start = |(samples, inputs)| {
                let labels = if has_labels { labels.next().expect("as many as inputs") } else { &mut [] };
                scope.spawn(move || self.copy_rows(samples, row, (width, inputs, labels)))
            };
            let running: Vec<_> = parts.map(start).collect();
            running.into_iter().try_for_each(|thread| thread.join().expect("a copy doesn't panic"))
        })
    }

    fn copy_rows(
        &self,
        samples: &[Sample],
        row: usize,
        (width, inputs, labels): (Width, &mut [u8], &mut [u8]),
    ) -> Result<(), Error> {
        let mut labels = labels.chunks_exact_mut(row);
        for (sample, inputs) in samples.iter().zip(inputs.chunks_exact_mut(row)) {
            let (source, tokens) = (&self.sources[sample.source], self.tokens(sample));
            source.copy(tokens.start..tokens.end - 1, width, inputs)?;
            if let Some(labels) = labels.next() {
                source.copy(tokens.start + 1..tokens.end, width, labels)?;
            }
        }
        Ok(())
    }

    /// The type of the tokens of all sources.
    #[must_use]
    pub fn data_type(&self) -> TokenType {
        self.sources[0].data_type()
    }
}

fn check(sources: &[Source], options: &Options) -> Result<(), Error> {
    let Options { global_batch, world_size, rank, sequence_length, epochs, .. } = options;
    let Some(first) = sources.first() else {
        return Err(Error::refused("source", "there is none"));
    };
    if let Some(other) = sources.iter().find(|source| source.data_type() != first.data_type()) {
        let (one, two) = (first.data_type().name(), other.data_type().name());
        let problem =
            format!("{} holds {two}, and {} {one}: convert one", other.path().display(), first.path().display());
        return Err(Error::refused("source", problem));
    }
    check_batch(*global_batch, *world_size)?;
    if *rank >= world_size.get() {
        return Err(Error::refused("rank", format!("{rank} isn't below {world_size}")));
    }
    if sequence_length.get() > SEQUENCE_MAX {
        return Err(Error::refused(
            "sequence_length",
            format!("{sequence_length} tokens are more than {SEQUENCE_MAX}"),
        ));
    }
    if options.threads.get() > THREADS_MAX {
        return Err(Error::refused("threads", format!("{} are more than {THREADS_MAX}", options.threads)));
    }
    match epochs {
        Some(0) => Err(Error::refused("epochs", "0 passes have no batch")),
        Some(_) if sources.len() > 1 => Err(Error::refused(
            "epochs",
            "a mixture has no end, since its sources end at different times: leave it out",
        )),
        _ => Ok(()),
    }
}

fn check_batch(global_batch: NonZeroU32, world_size: NonZeroU32) -> Result<(), Error> {
    if global_batch >= world_size {
        return Ok(());
    }
    let problem = format!("{global_batch} samples are fewer than {world_size} ranks: each needs one");
    Err(Error::refused("global_batch", problem))
}

/// Sample `i` has the tokens from `i * L` on, `L` of them, and the one behind each: `L + 1` in all, of which the last is the
/// next sample's first. What is less at the end is left out.
fn samples_of(source: &Source, options: &Options) -> u64 {
    source.tokens().saturating_sub(1) / u64::from(options.sequence_length.get())
}

/// Counts as weights, halved together until their sum is one that a mixture takes.
fn scaled(counts: &[u64]) -> Vec<u64> {
    let sum: u128 = counts.iter().map(|count| u128::from(*count)).sum();
    let shift = (u128::BITS - sum.leading_zeros()).saturating_sub(39);
    counts.iter().map(|count| (count >> shift).max(1)).collect()
}

fn data_id(sources: &[Source]) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    for source in sources {
        hasher.update(&source.id());
    }
    *hasher.finalize().as_bytes().first_chunk().expect("a hash has 32 bytes")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
